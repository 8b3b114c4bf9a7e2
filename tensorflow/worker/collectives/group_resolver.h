// SPDX-License-Identifier: Apache-2.0
// GroupResolver: resolves groups for TensorFlow workers that use this worker as group leader.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_GROUP_RESOLVER_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_GROUP_RESOLVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "proto/tf_worker.pb.h"

namespace ferry::worker {

// Like TensorFlow's leaders, keeps groups, instances and their errors for its whole lifetime. Not
// used between Ferry workers (leader.h). Thread-safe.
// Source: tensorflow/core/distributed_runtime/collective_param_resolver_distributed.cc, and
// core/common_runtime/collective_param_resolver_local.cc.
class GroupResolver final {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;
  using GroupDone = Done<tensorflow::CompleteGroupResponse>;
  using InstanceDone = Done<tensorflow::CompleteInstanceResponse>;
  // Identifies a pending call.
  using Ticket = int64_t;

  // Completes when all members have called.
  //   Errors, through `done`: INTERNAL for conflicting parameters; FAILED_PRECONDITION for a device
  //   that has restarted since; RESOURCE_EXHAUSTED; CANCELLED.
  Ticket CompleteGroup(const tensorflow::CompleteGroupRequest& request, GroupDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Broadcasts complete when all members have called, since one of them is the source.
  //   Errors: FAILED_PRECONDITION if there is no such group; INTERNAL, INVALID_ARGUMENT for
  //   conflicting parameters; as above.
  Ticket CompleteInstance(const tensorflow::CompleteInstanceRequest& request, InstanceDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Completes a pending call with CANCELLED; no effect if it has completed.
  void Cancel(Ticket ticket) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr size_t kMaxGroups = 10'000;
  static constexpr size_t kMaxInstances = 100'000;

  // Orders by job, replica, task, type and index: "/task:2" comes before "/task:10".
  struct ByParts {
    bool operator()(const std::string& a, const std::string& b) const;
  };
  template <typename Response>
  using Waiting = std::vector<std::pair<Ticket, Done<Response>>>;
  struct Group {
    int32_t size = 0;
    std::string device_type;
    // Keyed by device name.
    std::map<std::string, tensorflow::DeviceAttributes, ByParts> members;
    absl::Status status;
    Waiting<tensorflow::CompleteGroupResponse> waiting;
  };
  struct Instance {
    tensorflow::CompleteInstanceRequest first;
    // Devices that have called.
    absl::btree_set<std::string> known;
    int source_rank = -1;
    absl::Status status;
    Waiting<tensorflow::CompleteInstanceResponse> waiting;
  };

  static absl::Status Join(const tensorflow::CompleteGroupRequest& request, Group& group);
  static absl::Status Join(const tensorflow::CompleteInstanceRequest& request, const Group& group,
                           Instance& instance);

  absl::Mutex mu_;
  Ticket last_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int32_t, Group> groups_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int32_t, int32_t>, Instance> instances_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_GROUP_RESOLVER_H_
