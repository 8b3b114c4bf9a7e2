// SPDX-License-Identifier: Apache-2.0
// The devices and links of a node to and from ferry.v1.Hardware, shared by the two wire forms.
#ifndef FERRY_TOPOLOGY_HARDWARE_PROTO_H_
#define FERRY_TOPOLOGY_HARDWARE_PROTO_H_

#include "absl/status/statusor.h"

#include "proto/ferry_topology.pb.h"
#include "topology/local_topology.h"

namespace ferry {

// Converts only `devices` and `links` of the topology, with all their fields.
v1::Hardware HardwareToProto(const LocalTopology& topology);

// Errors: INVALID_ARGUMENT for an unknown device kind. Validate checks the rest.
absl::StatusOr<LocalTopology> HardwareFromProto(const v1::Hardware& proto);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_HARDWARE_PROTO_H_
