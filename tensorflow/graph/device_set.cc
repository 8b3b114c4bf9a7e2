// SPDX-License-Identifier: Apache-2.0
// Orders devices, and formats them for error messages.
#include "tensorflow/graph/device_set.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "tensorflow/graph/names.h"

namespace ferry::graph {
namespace {

// Limit for error messages: gRPC truncates them at about 8 KiB.
constexpr size_t kShownDevices = 64;

int TypeRank(const std::string& type) {
  if (type == "GPU") return 0;
  return type == "CPU" ? 2 : 1;
}

}  // namespace

absl::StatusOr<DeviceSet> DeviceSet::Create(
    absl::Span<const std::pair<std::string, uint64_t>> devices, absl::string_view client_device,
    absl::Span<const std::string> last) {
  DeviceSet set;
  for (const auto& [name, incarnation] : devices) {
    std::optional<TaskDevice> parsed = ParseDeviceName(name);
    if (!parsed.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("no device's name: ", Shown(name)));
    }
    std::string full_name = ferry::ToString(*parsed);
    set.devices_.push_back({*std::move(parsed), incarnation, std::move(full_name)});
  }
  const std::optional<TaskDevice> client = ParseDeviceName(client_device);
  if (!client.has_value() || client->type != "CPU") {
    return absl::InvalidArgumentError(absl::StrCat("no host's device: ", Shown(client_device)));
  }
  std::set<std::string> at_the_end;
  for (const std::string& name : last) {
    if (const std::optional<TaskDevice> parsed = ParseDeviceName(name); parsed.has_value()) {
      at_the_end.insert(ferry::ToString(*parsed));
    }
  }
  const auto rank = [&client, &at_the_end](const SessionDevice& one) {
    const TaskName& task = one.device.task;
    return std::make_tuple(at_the_end.count(one.name) > 0, TypeRank(one.device.type),
                           one.device.type, !(task == client->task), task.job, task.replica,
                           task.task, one.device.index);
  };
  std::sort(set.devices_.begin(), set.devices_.end(),
            [&rank](const SessionDevice& a, const SessionDevice& b) { return rank(a) < rank(b); });
  for (const SessionDevice& one : set.devices_) {
    if (!set.by_name_.emplace(one.name, static_cast<int>(set.by_name_.size())).second) {
      return absl::InvalidArgumentError(absl::StrCat("two devices ", one.name));
    }
  }
  std::set<std::string> types;
  for (const SessionDevice& one : set.devices_) types.insert(one.device.type);
  if (types.size() > kMaxTypes) {
    return absl::InvalidArgumentError(
        absl::StrCat("devices of ", types.size(), " types, over the limit of ", kMaxTypes));
  }
  set.client_device_ = set.Find(ferry::ToString(*client));
  if (set.client_device_ < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the client's device ", ferry::ToString(*client),
                                                   " is not among ", set.ListText()));
  }
  return set;
}

int DeviceSet::Find(absl::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? -1 : found->second;
}

std::vector<int> DeviceSet::Matching(const DeviceSpec& spec) const {
  std::vector<int> matching;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (Matches(spec, devices_[i].device)) matching.push_back(static_cast<int>(i));
  }
  return matching;
}

std::string DeviceSet::ListText() const {
  // Sorted by name for the reader.
  std::vector<const SessionDevice*> sorted;
  for (const SessionDevice& one : devices_) sorted.push_back(&one);
  std::sort(sorted.begin(), sorted.end(), [](const SessionDevice* a, const SessionDevice* b) {
    const auto rank = [](const SessionDevice& one) {
      return std::tie(one.device.task.job, one.device.task.replica, one.device.task.task,
                      one.device.type, one.device.index);
    };
    return rank(*a) < rank(*b);
  });
  const size_t left_out = sorted.size() > kShownDevices ? sorted.size() - kShownDevices : 0;
  sorted.resize(sorted.size() - left_out);
  const auto name = [](std::string* out, const SessionDevice* one) {
    absl::StrAppend(out, one->name);
  };
  return absl::StrCat("[ ", absl::StrJoin(sorted, ", ", name),
                      left_out == 0 ? "" : absl::StrCat(", and ", left_out, " more"), " ]");
}

std::string DeviceSet::TypesText() const {
  std::set<std::string> types;
  for (const SessionDevice& one : devices_) types.insert(one.device.type);
  return absl::StrCat("[", absl::StrJoin(types, ", "), "]");
}

}  // namespace ferry::graph
