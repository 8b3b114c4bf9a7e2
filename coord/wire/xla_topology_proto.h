// SPDX-License-Identifier: Apache-2.0
// XLA's topology messages: numbering devices, and conversion to and from ours.
#ifndef FERRY_COORD_WIRE_XLA_TOPOLOGY_PROTO_H_
#define FERRY_COORD_WIRE_XLA_TOPOLOGY_PROTO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "topology/local_topology.h"

namespace ferry::coord {

// True if `local` uses the numbering that had the devices at field 2.
bool IsLegacyXlaTopology(absl::string_view local);

// Converts an xla.LocalTopologyProto in either numbering to ours. Devices with a CUDA compute
// capability or NVIDIA as vendor count as GPUs, the others as host devices.
//   Errors: INVALID_ARGUMENT if the bytes are not such a message.
absl::StatusOr<LocalTopology> FromXlaTopology(absl::string_view local);

// Returns an xla.LocalTopologyProto, for a node that used another service.
std::string ToXlaTopology(const LocalTopology& local);

// Returns the xla.GlobalTopologyProto of `locals`, given in node order. Devices get dense global
// ids in that order, and a partition index, which older clients call their slice: the one their
// nodes name, else one per NVLink fabric if every GPU is in one, else one per boot id. Unknown
// fields are kept.
//   legacy: write the older numbering, which has no partitions.
//   nodes: the number of each one's node; empty if they are 0, 1, ...
//   Errors: INVALID_ARGUMENT when one of them is not a local topology, or some name their
//   partition and others do not.
absl::StatusOr<std::string> MergeXlaTopologies(const std::vector<std::string>& locals, bool legacy,
                                               const std::vector<int32_t>& nodes = {});

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_XLA_TOPOLOGY_PROTO_H_
