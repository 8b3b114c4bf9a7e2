// SPDX-License-Identifier: Apache-2.0
// How connections that carry tensors are set up, as client and as server.
#ifndef FERRY_RENDEZVOUS_GRPC_TENSOR_CHANNEL_H_
#define FERRY_RENDEZVOUS_GRPC_TENSOR_CHANNEL_H_

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include "absl/time/time.h"

namespace ferry {

// To a worker at HOST:PORT, over a connection of its own; connects when it is first used. Messages
// of any size. Tries again at once and then every 2 s at most when the worker is not there.
// Does not probe the connection unless it is told to: TensorFlow's workers hang up on clients that
// do, and a worker that is gone is the coordinator's to notice.
struct TensorChannelOptions {
  // While calls are under way the connection is probed when it has been idle for this long, and
  // given up when no answer comes within the other.
  absl::Duration keepalive_time = absl::InfiniteDuration();
  absl::Duration keepalive_timeout = absl::Seconds(10);
};
std::shared_ptr<grpc::Channel> MakeTensorChannel(const std::string& address,
                                                 const TensorChannelOptions& options = {});

// Messages of any size, large pieces, and probes by clients allowed.
void PrepareTensorServer(grpc::ServerBuilder& builder);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_GRPC_TENSOR_CHANNEL_H_
