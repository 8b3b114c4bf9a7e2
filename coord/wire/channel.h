// SPDX-License-Identifier: Apache-2.0
// HTTP/2 settings of the coordinator's connections.
#ifndef FERRY_COORD_WIRE_CHANNEL_H_
#define FERRY_COORD_WIRE_CHANNEL_H_

#include <memory>
#include <string>

#include <grpcpp/server_builder.h>

namespace ferry::coord {

// gRPC probes a connection's bandwidth with a ping and window updates for every few bytes it
// reads; for small messages that doubles the packets. This disables the probes here, with a fixed
// window of 1 MiB, which a message may exceed.
void DisableBandwidthProbes(grpc::ServerBuilder& builder);

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_CHANNEL_H_
