// SPDX-License-Identifier: Apache-2.0
// How Ferry sets up its end of an HTTP/2 connection, as client and as server.
#ifndef FERRY_COORD_GRPC_CHANNEL_H_
#define FERRY_COORD_GRPC_CHANNEL_H_

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

namespace ferry::coord {

// The agent's channel to a coordinator at HOST:PORT; connects when it is first used.
std::shared_ptr<grpc::Channel> MakeAgentChannel(const std::string& address);

// gRPC probes a connection's bandwidth with a ping and window updates for every few bytes it
// reads; for small messages that is twice the packets. This end does not, and offers a window
// wide enough to do without: 1 MiB, which a message may exceed.
void DisableBandwidthProbes(grpc::ServerBuilder& builder);

}  // namespace ferry::coord

#endif  // FERRY_COORD_GRPC_CHANNEL_H_
