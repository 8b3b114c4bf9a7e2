// SPDX-License-Identifier: Apache-2.0
// Reads and writes XLA's topology messages.
#include "coord/wire/xla_topology_proto.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "proto/xla_topology.pb.h"
#include "topology/device.h"

namespace ferry::coord {
namespace {

bool Parse(absl::string_view bytes, google::protobuf::MessageLite& message) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

// Converts to the newer numbering, whichever `bytes` use.
absl::StatusOr<xla::LocalTopology> Read(absl::string_view bytes) {
  xla::LocalTopology local;
  if (IsLegacyXlaTopology(bytes)) {
    xla::LegacyLocalTopology legacy;
    if (Parse(bytes, legacy)) {
      local.set_process_id(legacy.node_id());
      local.mutable_devices()->Swap(legacy.mutable_devices());
      return local;
    }
  } else if (Parse(bytes, local)) {
    return local;
  }
  return absl::InvalidArgumentError("the local topology cannot be parsed");
}

bool IsGpu(const xla::DeviceProto& device) {
  return !device.compute_capability().empty() ||
         absl::StrContains(absl::AsciiStrToLower(device.vendor()), "nvidia");
}

// Sets the partition index of every device of the job as upstream's services do: the index that
// the nodes name, if they do; else one per NVLink fabric, if every GPU is in one; else one per
// machine. Partitions are numbered by first appearance. Machines without a boot id count as one.
absl::Status AssignPartitions(xla::GlobalTopology& global) {
  auto& nodes = *global.mutable_processes();
  const auto with = std::find_if(nodes.begin(), nodes.end(), [](const xla::LocalTopology& node) {
    return node.has_partition_index();
  });
  const auto without = std::find_if(nodes.begin(), nodes.end(), [](const xla::LocalTopology& node) {
    return !node.has_partition_index();
  });
  if (with != nodes.end() && without != nodes.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", with->process_id(), " names partition ", with->partition_index(), " but node ",
        without->process_id(), " names none: either every node names its partition or none does"));
  }
  if (with != nodes.end()) {
    for (xla::LocalTopology& node : nodes) {
      for (xla::DeviceProto& device : *node.mutable_devices()) {
        device.set_partition_index(node.partition_index());
      }
    }
    return absl::OkStatus();
  }
  bool any_gpu = false;
  bool all_in_fabrics = true;
  // By boot id. Groups host devices, which Ferry's clients have in addition to their GPUs.
  absl::flat_hash_map<std::string, std::string> fabric_of_machine;
  for (const xla::LocalTopology& node : nodes) {
    for (const xla::DeviceProto& device : node.devices()) {
      if (!IsGpu(device) && device.fabric_uuid().empty()) continue;
      any_gpu = true;
      all_in_fabrics &= IsFabric(device.fabric_uuid());
      fabric_of_machine.try_emplace(node.boot_id(), device.fabric_uuid());
    }
  }
  const bool by_fabric = any_gpu && all_in_fabrics;
  absl::flat_hash_map<std::string, int> numbers;
  const auto number_of = [&numbers](std::string key) {
    return numbers.try_emplace(std::move(key), static_cast<int>(numbers.size())).first->second;
  };
  for (xla::LocalTopology& node : nodes) {
    // Grouped by machine, a node without devices is numbered as well.
    const std::string machine = absl::StrCat("machine ", node.boot_id());
    if (!by_fabric) (void)number_of(machine);
    for (xla::DeviceProto& device : *node.mutable_devices()) {
      std::string key = machine;
      if (by_fabric) {
        const auto beside = fabric_of_machine.find(node.boot_id());
        if (!device.fabric_uuid().empty()) {
          key = absl::StrCat("fabric ", device.fabric_uuid());
        } else if (beside != fabric_of_machine.end()) {
          key = absl::StrCat("fabric ", beside->second);
        }
      }
      device.set_partition_index(number_of(std::move(key)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsLegacyXlaTopology(absl::string_view bytes) {
  // Read in the newer numbering, a legacy message has no devices, and its boot id is the last
  // device, which begins with a control character (a field tag) or is empty; a boot id is text.
  xla::LocalTopology local;
  xla::LegacyLocalTopology legacy;
  if (!Parse(bytes, legacy)) return false;
  if (legacy.devices().empty()) return false;
  if (!Parse(bytes, local)) return true;
  if (!local.devices().empty()) return false;
  return local.boot_id().empty() || std::iscntrl(static_cast<unsigned char>(local.boot_id()[0]));
}

absl::StatusOr<LocalTopology> FromXlaTopology(absl::string_view bytes) {
  FERRY_ASSIGN_OR_RETURN(const xla::LocalTopology local, Read(bytes));
  LocalTopology out;
  out.node_id = local.process_id();
  out.boot_id = local.boot_id();
  if (local.has_partition_index()) out.partition_index = local.partition_index();
  // XLA's ordinals may repeat or have gaps; ours count within a kind.
  std::map<DeviceKind, int> next_ordinal;
  for (const xla::DeviceProto& device : local.devices()) {
    Device& added = out.devices.emplace_back();
    added.kind = IsGpu(device) ? DeviceKind::kGpu : DeviceKind::kHost;
    added.ordinal = next_ordinal[added.kind]++;
    added.name = device.name();
    added.vendor = device.vendor();
    added.core_count = std::max(device.core_count(), 0);
    added.memory_bytes =
        static_cast<uint64_t>(std::max<int64_t>(device.device_memory_bytes_limit(), 0));
    added.fabric_uuid = device.fabric_uuid();
    const std::vector<std::string> capability = absl::StrSplit(device.compute_capability(), '.');
    if (capability.size() == 2) {
      int major = 0;
      int minor = 0;
      if (absl::SimpleAtoi(capability[0], &major) && absl::SimpleAtoi(capability[1], &minor)) {
        added.compute_major = major;
        added.compute_minor = minor;
      }
    }
  }
  return out;
}

std::string ToXlaTopology(const LocalTopology& local) {
  xla::LocalTopology out;
  out.set_process_id(local.node_id);
  out.set_boot_id(local.boot_id);
  if (local.partition_index.has_value()) out.set_partition_index(*local.partition_index);
  for (const Device& device : local.devices) {
    xla::DeviceProto& added = *out.add_devices();
    added.set_local_device_ordinal(device.ordinal);
    added.set_name(device.name);
    added.set_vendor(device.vendor);
    added.set_core_count(device.core_count);
    added.set_fabric_uuid(device.fabric_uuid);
    if (device.compute_major > 0) {
      added.set_compute_capability(absl::StrCat(device.compute_major, ".", device.compute_minor));
    }
  }
  return out.SerializeAsString();
}

absl::StatusOr<std::string> MergeXlaTopologies(const std::vector<std::string>& locals, bool legacy,
                                               const std::vector<int32_t>& nodes) {
  xla::GlobalTopology global;
  int32_t next_id = 0;
  for (size_t i = 0; i < locals.size(); ++i) {
    FERRY_ASSIGN_OR_RETURN(xla::LocalTopology local, Read(locals[i]));
    local.set_process_id(nodes.empty() ? static_cast<int32_t>(i) : nodes[i]);
    for (xla::DeviceProto& device : *local.mutable_devices()) {
      device.set_global_device_id(next_id++);
    }
    *global.add_processes() = std::move(local);
  }
  if (!legacy) {
    FERRY_RETURN_IF_ERROR(AssignPartitions(global));
    return global.SerializeAsString();
  }
  // The older numbering has no field for partitions.
  xla::LegacyGlobalTopology old;
  for (xla::LocalTopology& local : *global.mutable_processes()) {
    xla::LegacyLocalTopology& node = *old.add_nodes();
    node.set_node_id(local.process_id());
    node.mutable_devices()->Swap(local.mutable_devices());
  }
  return old.SerializeAsString();
}

}  // namespace ferry::coord
