// SPDX-License-Identifier: Apache-2.0
// MachineOf: what the queries of the records were answered.
#include "benchmarks/gpu/calls/replay_machine.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry::calls {
namespace {

// The emulation has no more.
constexpr int64_t kMaxDevices = 16;

struct Seen {
  int64_t count = 0;
  std::map<int64_t, std::string> uuids;  // by ordinal
};

int64_t NumberOf(const RecordedCall& call, absl::string_view name) {
  const Value* const value = call.Find(name);
  return value == nullptr ? 0 : value->number;
}

}  // namespace

ReplayMachine MachineOf(const std::vector<CallRecord>& records) {
  ReplayMachine machine;
  std::vector<Seen> seen(records.size());
  std::map<int64_t, int64_t> compute;  // attribute to value
  for (size_t i = 0; i < records.size(); ++i) {
    for (const RecordedCall& call : records[i].calls) {
      const std::string_view symbol = call.description->symbol;
      if (call.result != cuda::kSuccess) continue;
      if (symbol == "cuDeviceGetCount") seen[i].count = NumberOf(call, "count");
      if (symbol == "cuDeviceGetUuid_v2" && !call.Find("uuid")->is_absent) {
        seen[i].uuids[NumberOf(call, "device")] = call.Find("uuid")->bytes;
      }
      if (symbol == "cuDeviceTotalMem_v2") {
        machine.environment["STRICT_CUDA_MEMORY"] = absl::StrCat(NumberOf(call, "total"));
      }
      if (symbol == "cuDriverGetVersion") {
        machine.environment["STRICT_CUDA_DRIVER_VERSION"] = absl::StrCat(NumberOf(call, "version"));
      }
      if (symbol == "cuDeviceGetAttribute") {
        compute[NumberOf(call, "attribute")] = NumberOf(call, "value");
      }
    }
  }
  if (compute.contains(cuda::kComputeCapabilityMajor) &&
      compute.contains(cuda::kComputeCapabilityMinor)) {
    machine.environment["STRICT_CUDA_COMPUTE"] = absl::StrCat(
        compute[cuda::kComputeCapabilityMajor], ".", compute[cuda::kComputeCapabilityMinor]);
  }
  // The process that saw most of them gives the order of the machine's devices.
  std::vector<size_t> order(records.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return seen[a].count > seen[b].count; });
  std::map<std::string, size_t> places;
  machine.visible.resize(records.size());
  int64_t devices = 0;
  for (const size_t i : order) {
    std::vector<int64_t> shown;
    for (int64_t ordinal = 0; ordinal < std::min(seen[i].count, kMaxDevices); ++ordinal) {
      const auto uuid = seen[i].uuids.find(ordinal);
      shown.push_back(uuid == seen[i].uuids.end()
                          ? ordinal
                          : static_cast<int64_t>(
                                places.try_emplace(uuid->second, places.size()).first->second));
      devices = std::max(devices, shown.back() + 1);
    }
    machine.visible[i] = absl::StrJoin(shown, ",");
  }
  if (devices > 0) {
    machine.environment["STRICT_CUDA_DEVICES"] = absl::StrCat(std::min(devices, kMaxDevices));
  }
  return machine;
}

}  // namespace ferry::calls
