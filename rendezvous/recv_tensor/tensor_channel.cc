// SPDX-License-Identifier: Apache-2.0
// Channel and server arguments for bulk transfers.
#include "rendezvous/recv_tensor/tensor_channel.h"

#include <limits>
#include <vector>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "coord/wire/callback_threads.h"

namespace ferry {
namespace {

// Measured with benchmarks/recv_tensor_bench. Received bytes are copied while still in the caches
// only if each read is small; sending overlaps with encoding the next frame only if a write may
// leave bytes buffered.
constexpr int kWindowBytes = 8 << 20;
constexpr int kHttp2FrameBytes = 64 << 10;
constexpr int kMaxReadBytes = 1 << 20;
constexpr int kWriteBufferBytes = 4 << 20;

// Connect timeout for each of several addresses, equal to that of control channels. gRPC's default
// of 20 s would exceed other timeouts.
constexpr int kConnectTimeoutMs = 10'000;

template <typename SetInt>
void SetBulkArguments(SetInt set) {
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1);
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kHttp2FrameBytes);
  set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kWriteBufferBytes);
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kMaxReadBytes);
}

}  // namespace

std::string TensorTarget(const std::string& address) {
  if (!absl::StrContains(address, ',')) return address;
  std::vector<std::string> targets;
  for (const absl::string_view each : absl::StrSplit(address, ',')) {
    const size_t colon = each.rfind(':');
    absl::string_view host = each.substr(0, colon);
    const absl::string_view port = colon == each.npos ? "" : each.substr(colon);
    const bool is_ipv6 = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
    // All targets in a list must have one scheme. gRPC connects to a mapped address by IPv4, even
    // on a kernel without IPv6.
    targets.push_back(absl::StrCat("%5B", is_ipv6 ? "" : "::ffff:", host, "%5D", port));
  }
  return absl::StrCat("ipv6:", absl::StrJoin(targets, ","));
}

absl::Status ExplainUnreachable(const absl::Status& status, absl::string_view address) {
  // Source: gRPC 1.51, pick_first.cc.
  if (!absl::IsUnavailable(status) ||
      !absl::StrContains(status.message(), "failed to connect to all addresses")) {
    return status;
  }
  return absl::Status(
      status.code(),
      absl::StrCat(
          "cannot be reached at ", absl::StrReplaceAll(address, {{",", ", "}}), " (",
          status.message(),
          "); if it runs, start it with --advertise=ADDRESS, one at which the others reach "
          "it, or open its port to them"));
}

std::shared_ptr<grpc::Channel> MakeTensorChannel(const std::string& address,
                                                 const TensorChannelOptions& options) {
  coord::KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  SetBulkArguments([&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  if (options.keepalive_time < absl::InfiniteDuration()) {
    const auto milliseconds = [](absl::Duration time) {
      return static_cast<int>(absl::ToInt64Milliseconds(time));
    };
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(options.keepalive_time));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds(options.keepalive_timeout));
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  // Workers are inside the cluster; a proxy in the environment is meant for external hosts.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::string target = TensorTarget(address);
  if (target != address) arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

void PrepareTensorServer(grpc::ServerBuilder& builder) {
  coord::KeepCallbackThreads();
  SetBulkArguments(
      [&builder](const char* name, int value) { builder.AddChannelArgument(name, value); });
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  // Allow any rate of keepalive probes; by default gRPC disconnects frequent probers.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // Never probe. This also disables gRPC's TCP_USER_TIMEOUT of 20 s for servers, which disconnects
  // a receiver that is merely stopped, since its window stays closed. The coordinator detects
  // vanished hosts. Source: gRPC, socket_utils_common_posix.cc, grpc_set_socket_tcp_user_timeout;
  // gRFC A18.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, std::numeric_limits<int>::max());
}

}  // namespace ferry
