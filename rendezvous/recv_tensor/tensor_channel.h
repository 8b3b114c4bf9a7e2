// SPDX-License-Identifier: Apache-2.0
// How connections that carry tensors are set up, as client and as server.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CHANNEL_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CHANNEL_H_

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry {

// To a worker at HOST:PORT, or at several with commas between them, numbers then, of which the next
// is tried when one does not answer. Over a connection of its own; connects when it is first used.
// Messages of any size. Tries again at once and then every 2 s at most when the worker is not
// there. Does not probe the connection unless configured to: TensorFlow's workers disconnect
// clients that do, and the coordinator detects workers that are gone.
struct TensorChannelOptions {
  // While calls are under way the connection is probed when it has been idle for this long, and
  // given up when no answer comes within the other.
  absl::Duration keepalive_time = absl::InfiniteDuration();
  absl::Duration keepalive_timeout = absl::Seconds(10);
};
std::shared_ptr<grpc::Channel> MakeTensorChannel(const std::string& address,
                                                 const TensorChannelOptions& options = {});

// gRPC's own name of such a target: "ipv6:..." of several, of both families perhaps; else
// `address`.
std::string TensorTarget(const std::string& address);

// Adds to an error of a call to a worker at `address` what to do if it could not be reached there;
// other errors are unchanged.
absl::Status ExplainUnreachable(const absl::Status& status, absl::string_view address);

// Messages of any size, large pieces, and probes by clients allowed.
void PrepareTensorServer(grpc::ServerBuilder& builder);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CHANNEL_H_
