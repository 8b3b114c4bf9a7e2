// SPDX-License-Identifier: Apache-2.0
// XLA's topology messages: numbering devices, and translation to and from ours.
#ifndef FERRY_COORD_WIRE_XLA_TOPOLOGY_PROTO_H_
#define FERRY_COORD_WIRE_XLA_TOPOLOGY_PROTO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "topology/local_topology.h"

namespace ferry::coord {

// Whether `local` is in the numbering that had the devices at field 2.
bool IsLegacyXlaTopology(absl::string_view local);

// Ours, from the bytes of an xla.LocalTopologyProto in either numbering. Devices that say a CUDA
// compute capability or NVIDIA as vendor count as GPUs, the others as host devices.
//   Errors: INVALID_ARGUMENT when the bytes are no such message.
absl::StatusOr<LocalTopology> FromXlaTopology(absl::string_view local);

// An xla.LocalTopologyProto, for a node that came through another service.
std::string ToXlaTopology(const LocalTopology& local);

// The xla.GlobalTopologyProto of `locals`, which are in the order of their nodes: devices get dense
// global ids in that order, and the index of their partition, which older clients call their slice:
// that which their nodes name, else one for each NVLink fabric if every GPU is in one, else one for
// each boot id. Fields not known here stay.
//   legacy: write the older numbering, which has no partitions.
//   nodes: the number of each one's node; empty if they are 0, 1, ...
//   Errors: INVALID_ARGUMENT when one of them is no local topology, or some name their partition
//   and others do not.
absl::StatusOr<std::string> MergeXlaTopologies(const std::vector<std::string>& locals, bool legacy,
                                               const std::vector<int32_t>& nodes = {});

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_XLA_TOPOLOGY_PROTO_H_
