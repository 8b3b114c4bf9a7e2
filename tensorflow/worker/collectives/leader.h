// SPDX-License-Identifier: Apache-2.0
// CollectiveLeader: hears who comes to the collectives of a step, and tells them who the others
// are.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_LEADER_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_LEADER_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "tensorflow/worker/collectives/collective_node.h"
#include "tensorflow/worker/collectives/group_table.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// On the first device of a step's list. Thread-safe; holds no thread. It is there until the step is
// over, whatever becomes of the run that has started it: others may still come.
//
// 1. A member sends a CollectiveJoin to the leader under "collective/join"; those of one device
//    arrive in order.
// 2. When all members of its instance have come, or it fails, the leader sends CollectiveMembers
//    under "collective/<group>:<instance>/members".
// 3. If a device cannot be heard any more, whatever waits ends with the reason: it may be waiting
//    for that.
class CollectiveLeader final : public std::enable_shared_from_this<CollectiveLeader> {
 public:
  //   clock: that of the exchange's deadlines; outlives the step.
  static void Start(std::shared_ptr<StepTransfers> exchange,
                    std::shared_ptr<const CollectiveDevices> devices, const Clock& clock);

 private:
  CollectiveLeader(std::shared_ptr<StepTransfers> exchange,
                   std::shared_ptr<const CollectiveDevices> devices, const Clock& clock);

  void Listen(int device);
  void OnJoin(int device, const absl::Status& status, const Received& received)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const std::vector<GroupTable::Answer>& answers);
  // Has somebody call when the next time is up.
  void SetAlarm() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::shared_ptr<StepTransfers> exchange_;
  const std::shared_ptr<const CollectiveDevices> devices_;
  const Clock& clock_;

  absl::Mutex mu_;
  GroupTable table_ ABSL_GUARDED_BY(mu_);
  // The earliest one that is set.
  absl::Time alarm_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  int64_t alarm_count_ ABSL_GUARDED_BY(mu_) = 0;
};

// Messages of protocol buffers as tensors of bytes.
Tensor ToTensor(const google::protobuf::MessageLite& message);
// False if it is none.
bool FromTensor(const Tensor& tensor, google::protobuf::MessageLite& message);

// "collective/<group>:<instance>/<what>".
std::string CollectiveEdge(int32_t group_key, int32_t instance_key, absl::string_view what);
// The member that keeps the table.
inline constexpr int kLeader = 0;
inline constexpr absl::string_view kJoinEdge = "collective/join";
inline constexpr absl::string_view kMembersEdge = "members";

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_LEADER_H_
