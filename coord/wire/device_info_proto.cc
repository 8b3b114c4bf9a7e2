// SPDX-License-Identifier: Apache-2.0
// Merges the device information of all tasks.
#include "coord/wire/device_info_proto.h"

#include <utility>

#include "absl/strings/match.h"

#include "base/status_macros.h"
#include "coord/wire/xla_topology_proto.h"
#include "proto/xla_topology.pb.h"

namespace ferry::coord {
namespace {

constexpr char kLocalTopologyType[] = "xla.LocalTopologyProto";
constexpr char kGlobalTopologyUrl[] = "type.googleapis.com/xla.GlobalTopologyProto";

// The packed form is a WaitForAllTasksRequest with only the device fields.
tensorflow::WaitForAllTasksRequest Unpack(const std::string& packed) {
  tensorflow::WaitForAllTasksRequest request;
  request.ParseFromString(packed);
  return request;
}

// Local topologies and the tasks that sent them: not every task has devices.
struct ToldTopologies {
  std::vector<std::string> locals;
  std::vector<int32_t> tasks;

  void Add(std::string local, int32_t task) {
    locals.push_back(std::move(local));
    tasks.push_back(task);
  }
};

// Appends the local topologies inside a 2022 device list: each task sends a global one with one
// node.
void AppendNodes(const std::string& global, int32_t task, bool& legacy, ToldTopologies& told) {
  xla::GlobalTopology topology;
  if (!topology.ParseFromString(global)) return;
  for (const xla::LocalTopology& local : topology.processes()) {
    told.Add(local.SerializeAsString(), task);
    legacy |= IsLegacyXlaTopology(told.locals.back());
  }
}

absl::StatusOr<tensorflow::WaitForAllTasksResponse> MergeAll(
    const std::vector<std::string>& packed) {
  tensorflow::WaitForAllTasksResponse merged;
  ToldTopologies as_any;
  ToldTopologies of_2022;
  bool legacy = false;
  for (size_t i = 0; i < packed.size(); ++i) {
    const auto task = static_cast<int32_t>(i);
    const tensorflow::WaitForAllTasksRequest request = Unpack(packed[i]);
    for (const std::string& device : request.device_info().device()) {
      xla::Any any;
      if (any.ParseFromString(device) && absl::EndsWith(any.type_url(), kLocalTopologyType)) {
        as_any.Add(std::move(*any.mutable_value()), task);
      } else {
        merged.mutable_device_info()->add_device(device);
      }
    }
    for (const std::string& device : request.local_device_info().tf().devices()) {
      merged.mutable_cluster_device_info()->mutable_tf()->add_devices(device);
    }
    AppendNodes(request.local_device_info().xla().devices(), task, legacy, of_2022);
  }
  if (!as_any.locals.empty()) {
    FERRY_ASSIGN_OR_RETURN(std::string global,
                           MergeXlaTopologies(as_any.locals, /*legacy=*/false, as_any.tasks));
    xla::Any any;
    any.set_type_url(kGlobalTopologyUrl);
    any.set_value(std::move(global));
    merged.mutable_device_info()->add_device(any.SerializeAsString());
  }
  if (!of_2022.locals.empty()) {
    FERRY_ASSIGN_OR_RETURN(std::string global,
                           MergeXlaTopologies(of_2022.locals, legacy, of_2022.tasks));
    merged.mutable_cluster_device_info()->mutable_xla()->set_devices(std::move(global));
  }
  return merged;
}

}  // namespace

std::string DeviceInfoMerger::Pack(const tensorflow::WaitForAllTasksRequest& request) {
  tensorflow::WaitForAllTasksRequest packed = request;
  packed.clear_source_task();
  return packed.SerializeAsString();
}

std::string DeviceInfoMerger::Pack(const numbered::WaitForAllTasksRequest& request) {
  numbered::WaitForAllTasksRequest packed = request;
  packed.clear_source_task();
  return packed.SerializeAsString();
}

absl::Status DeviceInfoMerger::MergeLocked(const std::vector<std::string>& packed) {
  if (packed != merged_from_) {
    merged_from_ = packed;
    merged_ = MergeAll(packed);
  }
  return merged_.status();
}

absl::Status DeviceInfoMerger::Merge(const std::vector<std::string>& packed,
                                     tensorflow::WaitForAllTasksResponse& response) {
  absl::MutexLock lock(&mu_);
  FERRY_RETURN_IF_ERROR(MergeLocked(packed));
  if (merged_->has_device_info()) *response.mutable_device_info() = merged_->device_info();
  if (merged_->has_cluster_device_info()) {
    *response.mutable_cluster_device_info() = merged_->cluster_device_info();
  }
  return absl::OkStatus();
}

absl::Status DeviceInfoMerger::Merge(const std::vector<std::string>& packed,
                                     numbered::WaitForAllTasksResponse& response) {
  absl::MutexLock lock(&mu_);
  FERRY_RETURN_IF_ERROR(MergeLocked(packed));
  for (const std::string& device : merged_->device_info().device()) {
    response.mutable_device_info()->add_device(device);
  }
  return absl::OkStatus();
}

}  // namespace ferry::coord
