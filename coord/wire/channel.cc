// SPDX-License-Identifier: Apache-2.0
// Channel arguments.
#include "coord/wire/channel.h"

namespace ferry::coord {
namespace {

constexpr int kWindowBytes = 1 << 20;

}  // namespace

void DisableBandwidthProbes(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
}

}  // namespace ferry::coord
