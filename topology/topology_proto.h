// SPDX-License-Identifier: Apache-2.0
// Topologies to and from their wire form.
#ifndef FERRY_TOPOLOGY_TOPOLOGY_PROTO_H_
#define FERRY_TOPOLOGY_TOPOLOGY_PROTO_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "proto/ferry_topology.pb.h"
#include "topology/global_topology.h"
#include "topology/local_topology.h"

namespace ferry {

// REQUIRES: Validate(topology) is OK.
v1::LocalTopology ToProto(const LocalTopology& topology);

// Errors: INVALID_ARGUMENT as Validate.
absl::StatusOr<LocalTopology> FromProto(const v1::LocalTopology& proto);

v1::GlobalTopology ToProto(const GlobalTopology& topology);

// Errors: INVALID_ARGUMENT if columns do not match each other, an index is out of range, or as
// BuildGlobalTopology; RESOURCE_EXHAUSTED if it would expand beyond the limits.
absl::StatusOr<GlobalTopology> FromProto(const v1::GlobalTopology& proto);

// The same as bytes. Equal topologies give equal bytes.
std::string SerializeTopology(const LocalTopology& topology);
std::string SerializeTopology(const GlobalTopology& topology);
absl::StatusOr<LocalTopology> ParseLocalTopology(absl::string_view bytes);
absl::StatusOr<GlobalTopology> ParseGlobalTopology(absl::string_view bytes);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_TOPOLOGY_PROTO_H_
