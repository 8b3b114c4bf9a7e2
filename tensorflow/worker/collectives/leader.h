// SPDX-License-Identifier: Apache-2.0
// CollectiveLeader: collects the joins of a step's collectives, and tells members their group.
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

// Runs on the first device of the step's list. Thread-safe; uses no thread while waiting. Exists
// until the step ends, even if the run that started it ends earlier, because other members may
// still join.
//
// 1. A member sends a CollectiveJoin to the leader under "collective/join"; those of one device
//    arrive in order.
// 2. When all members of its instance have joined, or it fails, the leader sends CollectiveMembers
//    under "collective/<group>:<instance>/members".
// 3. If receiving from a device fails, all pending joins fail with that error, since they may
//    depend on that device.
class CollectiveLeader final : public std::enable_shared_from_this<CollectiveLeader> {
 public:
  //   clock: the clock of the receives' deadlines; must outlive the step.
  static void Start(std::shared_ptr<StepTransfers> transfers,
                    std::shared_ptr<const CollectiveDevices> devices, const Clock& clock);

 private:
  CollectiveLeader(std::shared_ptr<StepTransfers> transfers,
                   std::shared_ptr<const CollectiveDevices> devices, const Clock& clock);

  void Listen(int device);
  void OnJoin(int device, const absl::Status& status, const Received& received)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const std::vector<GroupTable::Answer>& answers);
  // Arms a timer for the next deadline of the table.
  void SetAlarm() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::shared_ptr<StepTransfers> transfers_;
  const std::shared_ptr<const CollectiveDevices> devices_;
  const Clock& clock_;

  absl::Mutex mu_;
  GroupTable table_ ABSL_GUARDED_BY(mu_);
  // The earliest deadline that is armed.
  absl::Time alarm_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  int64_t alarm_count_ ABSL_GUARDED_BY(mu_) = 0;
};

// Wraps a serialised protocol buffer in a tensor of bytes.
Tensor ToTensor(const google::protobuf::MessageLite& message);
// Returns false if the tensor is not such a message.
bool FromTensor(const Tensor& tensor, google::protobuf::MessageLite& message);

// "collective/<group>:<instance>/<what>".
std::string CollectiveEdge(int32_t group_key, int32_t instance_key, absl::string_view what);
// Index of the leader's device.
inline constexpr int kLeader = 0;
inline constexpr absl::string_view kJoinEdge = "collective/join";
inline constexpr absl::string_view kMembersEdge = "members";

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_LEADER_H_
