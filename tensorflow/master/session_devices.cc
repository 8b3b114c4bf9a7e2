// SPDX-License-Identifier: Apache-2.0
// Device filters, and the map from devices to workers.
#include "tensorflow/master/session_devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bounded_text.h"
#include "base/status_macros.h"
#include "tensorflow/graph/names.h"

namespace ferry::master {
namespace {

// Limit on the workers named in an error.
constexpr size_t kMaxNamed = 16;

bool MatchesTask(const graph::DeviceSpec& spec, const TaskName& task) {
  return (!spec.job || *spec.job == task.job) && (!spec.replica || *spec.replica == task.replica) &&
         (!spec.task || *spec.task == task.task);
}

bool IsHost(const tensorflow::DeviceAttributes& device) { return device.device_type() == "CPU"; }

}  // namespace

absl::Status DeviceFilters::Add(absl::string_view text) {
  std::optional<graph::DeviceSpec> spec = graph::ParseDeviceSpec(text);
  if (!spec) {
    return absl::InvalidArgumentError(
        absl::StrCat("The device filter '", graph::Shown(text), "' is no device specification."));
  }
  specs_.push_back(*std::move(spec));
  return absl::OkStatus();
}

bool DeviceFilters::Matches(const TaskName& task) const {
  return specs_.empty() || std::any_of(specs_.begin(), specs_.end(), [&task](const auto& spec) {
           return MatchesTask(spec, task);
         });
}

bool DeviceFilters::Matches(const TaskDevice& device) const {
  return specs_.empty() || std::any_of(specs_.begin(), specs_.end(), [&device](const auto& spec) {
           return graph::Matches(spec, device);
         });
}

absl::StatusOr<SessionDevices> SelectDevices(const Cluster& cluster, const DeviceFilters& filters) {
  SessionDevices result;
  std::vector<std::pair<std::string, uint64_t>> names;
  std::vector<int> owners;
  std::vector<std::string> last;
  std::string client;
  for (const ClusterWorker& worker : cluster.workers) {
    if (!filters.Matches(worker.task)) continue;
    // The first worker's host device is kept regardless of the filters: feeds and fetches go
    // through it.
    const bool is_client = result.workers.empty();
    ClusterWorker kept = worker;
    kept.devices.clear();
    for (const tensorflow::DeviceAttributes& device : worker.devices) {
      const std::optional<TaskDevice> parsed = ParseDeviceName(device.name());
      if (!parsed) continue;
      const bool is_client_device = is_client && client.empty() && IsHost(device);
      if (!is_client_device && !filters.Matches(*parsed)) continue;
      if (is_client_device) client = device.name();
      names.emplace_back(device.name(), device.incarnation());
      if (!IsHost(device) && !worker.has_gpu_kernels) last.push_back(device.name());
      kept.devices.push_back(device);
    }
    if (kept.devices.empty()) continue;
    owners.resize(names.size(), static_cast<int>(result.workers.size()));
    result.workers.push_back(std::move(kept));
  }
  if (client.empty()) {
    return absl::InvalidArgumentError("No worker of the job matches the session's device filters.");
  }
  FERRY_ASSIGN_OR_RETURN(result.set, graph::DeviceSet::Create(names, client, last));
  result.worker_of_device.resize(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    result.worker_of_device[static_cast<size_t>(result.set.Find(names[i].first))] = owners[i];
  }
  return result;
}

std::string MissingText(const Cluster& cluster, const DeviceFilters& filters) {
  std::vector<std::string> texts;
  size_t count = 0;
  for (const MissingWorker& missing : cluster.missing) {
    if (!filters.Matches(missing.task)) continue;
    if (++count <= kMaxNamed) texts.push_back(absl::StrCat(missing.name, " (", missing.why, ")"));
  }
  return BoundedList(texts, kMaxNamed, count);
}

}  // namespace ferry::master
