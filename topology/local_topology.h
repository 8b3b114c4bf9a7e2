// SPDX-License-Identifier: Apache-2.0
// LocalTopology: what one node (one process of the job) reports about itself.
#ifndef FERRY_TOPOLOGY_LOCAL_TOPOLOGY_H_
#define FERRY_TOPOLOGY_LOCAL_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "topology/device.h"
#include "topology/link.h"

namespace ferry {

// Limits of one node's topology; larger ones are rejected.
inline constexpr size_t kMaxDevicesPerNode = 1024;
inline constexpr size_t kMaxTopologyTextBytes = 512;  // any one string in it

// A plain value; thread-compatible. Fill `devices`, then SetLink for each known pair.
struct LocalTopology {
  int32_t node_id = 0;    // the task number in the job
  std::string host_name;  // for display; not an identity
  std::string boot_id;    // equal if and only if nodes share a machine; empty when unknown
  std::string endpoint;   // where the node's process listens; may be empty
  std::optional<int32_t> partition_index;  // given by the user, on all nodes or on none
  std::vector<Device> devices;
  std::vector<DeviceLink> links;  // sorted by (first, second), at most one for a pair; see SetLink

  // Sets the path between two devices, replacing a previous one. Their order does not matter.
  // REQUIRES: first != second, and both are indexes into `devices`.
  void SetLink(int first, int second, const Link& link);

  // The path between two devices: LOC for a device and itself, DIS for an unknown pair.
  Link LinkBetween(int first, int second) const;

  friend bool operator==(const LocalTopology&, const LocalTopology&) = default;
};

// Checks a peer's report.
//   Errors: INVALID_ARGUMENT naming the node and the device, link or field: a negative id, a name
//   or UUID that appears twice, a link to no device or out of order, a text or a count over its
//   limit. A PCI bus id may appear twice: the slices of a GPU that is partitioned (MIG) share it.
absl::Status Validate(const LocalTopology& topology);

// The first difference between two topologies of one node, for error texts: "devices: 8 before, 4
// now". Empty if they are equal.
std::string DescribeDifference(const LocalTopology& before, const LocalTopology& now);

std::ostream& operator<<(std::ostream& out, const LocalTopology& topology);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_LOCAL_TOPOLOGY_H_
