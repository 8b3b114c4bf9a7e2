// SPDX-License-Identifier: Apache-2.0
// gRPC channel and server settings for tensor transfers.
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

// To a worker at HOST:PORT, or several separated by commas (numeric then), of which the next is
// tried when one does not answer. Uses a connection of its own; connects on first use. Messages of
// any size. While the worker is unreachable, retries at once and then at most every 2 s. Sends no
// keepalive probes unless configured to: TensorFlow's workers disconnect clients that do, and the
// coordinator detects failed workers.
struct TensorChannelOptions {
  // While calls are pending, the connection is probed after being idle for this long, and closed if
  // there is no answer within the other.
  absl::Duration keepalive_time = absl::InfiniteDuration();
  absl::Duration keepalive_timeout = absl::Seconds(10);
};
std::shared_ptr<grpc::Channel> MakeTensorChannel(const std::string& address,
                                                 const TensorChannelOptions& options = {});

// The gRPC target: "ipv6:..." for several addresses, possibly of both families; else `address`.
std::string TensorTarget(const std::string& address);

// Adds advice to an error of a call to a worker at `address` if it could not be reached there;
// other errors are unchanged.
absl::Status ExplainUnreachable(const absl::Status& status, absl::string_view address);

// Allows messages of any size, large reads and writes, and probes by clients.
void PrepareTensorServer(grpc::ServerBuilder& builder);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CHANNEL_H_
