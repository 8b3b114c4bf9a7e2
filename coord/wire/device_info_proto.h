// SPDX-License-Identifier: Apache-2.0
// The device information in WaitForAllTasks: requests, and the merged response.
#ifndef FERRY_COORD_WIRE_DEVICE_INFO_PROTO_H_
#define FERRY_COORD_WIRE_DEVICE_INFO_PROTO_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "proto/tsl_coordination.pb.h"
#include "proto/xla_coordination_numbered.pb.h"

namespace ferry::coord {

// Thread-safe. XLA topologies become one global topology with dense device ids; TensorFlow's
// device lists, and anything unknown, are concatenated in task order.
class DeviceInfoMerger final {
 public:
  // The request's device information as the coordinator keeps it (opaque to it).
  static std::string Pack(const tensorflow::WaitForAllTasksRequest& request);
  static std::string Pack(const numbered::WaitForAllTasksRequest& request);

  // `packed`: one per task, empty for those without devices. The result is cached: every task of a
  // job gets the same bytes, or the same error.
  //   Errors: as MergeXlaTopologies.
  absl::Status Merge(const std::vector<std::string>& packed,
                     tensorflow::WaitForAllTasksResponse& response);
  absl::Status Merge(const std::vector<std::string>& packed,
                     numbered::WaitForAllTasksResponse& response);

 private:
  // Updates merged_.
  absl::Status MergeLocked(const std::vector<std::string>& packed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  // The last job's result, and its input.
  std::vector<std::string> merged_from_ ABSL_GUARDED_BY(mu_);
  absl::StatusOr<tensorflow::WaitForAllTasksResponse> merged_ ABSL_GUARDED_BY(mu_) =
      tensorflow::WaitForAllTasksResponse();
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_DEVICE_INFO_PROTO_H_
