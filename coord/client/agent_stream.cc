// SPDX-License-Identifier: Apache-2.0
// One connection of the agent: name resolution, frames, and why it ended.
#include "coord/client/agent_stream.h"

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/support/slice.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "net/resolver.h"

namespace ferry::coord {
namespace {

constexpr size_t kMaxWelcomeBytes = size_t{64} << 10;

absl::Status NotACoordinator() {
  return absl::UnavailableError(
      "the server there is not a Ferry coordinator, or an older one (it may be a worker's port)");
}

}  // namespace

AgentStream::AgentStream(SocketLoop& loop, Owner& owner)
    : DirectConnection(loop), owner_(owner), last_bytes_(absl::ToUnixNanos(SteadyClock().Now())) {}

void AgentStream::Open(const std::string& coordinator, std::shared_ptr<SocketLoop> loop) {
  absl::StatusOr<std::vector<SocketAddress>> numeric =
      ResolveAddress(coordinator, /*may_ask=*/false);
  if (numeric.ok()) return Connect(*std::move(numeric));
  if (absl::IsInvalidArgument(numeric.status())) return Close(numeric.status());
  // Name servers may take half a minute to answer. The thread owns all that it needs, and the
  // stream may have been closed when it returns.
  auto self = std::static_pointer_cast<AgentStream>(shared_from_this());
  try {
    std::thread([self, loop = std::move(loop), coordinator]() mutable {
      absl::StatusOr<std::vector<SocketAddress>> addresses = ResolveAddress(coordinator);
      if (addresses.ok()) {
        self->Connect(*std::move(addresses));
      } else {
        self->Close(addresses.status());
      }
      self = nullptr;
    }).detach();
  } catch (const std::system_error& error) {
    self->Close(absl::UnavailableError(
        absl::StrCat("no thread to look the coordinator's name up: ", error.what())));
  }
}

bool AgentStream::Write(const v1::ClientFrame& frame) {
  const size_t bytes = frame.ByteSizeLong();
  grpc::Slice slice(bytes);
  frame.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return Send({&slice, 1});
}

bool AgentStream::OnFrame(const DirectFrame& received) {
  const int bytes = static_cast<int>(received.bytes.size());
  if (received.is_last) {
    v1::Reply why;
    // An OK status is no reason to end.
    end_ = why.ParseFromArray(received.bytes.data(), bytes) && why.code() != 0
               ? absl::Status(static_cast<absl::StatusCode>(why.code()), why.message())
               : absl::UnavailableError("the coordinator ended the stream");
    Close(end_);
    return false;
  }
  v1::ServerFrame frame;
  if (!frame.ParseFromArray(received.bytes.data(), bytes)) {
    Close(absl::UnavailableError("the coordinator sent a malformed frame"));
    return false;
  }
  has_welcome_ = true;
  owner_.OnFrame(*this, frame);
  return true;
}

void AgentStream::OnBytes() { last_bytes_ = absl::ToUnixNanos(SteadyClock().CoarseNow()); }

absl::Status AgentStream::CheckFrameSize(size_t bytes) {
  // The Welcome is small; another protocol's first bytes decode as a large number.
  if (has_welcome_ || bytes <= kMaxWelcomeBytes) return absl::OkStatus();
  return NotACoordinator();
}

void AgentStream::OnDrained() { owner_.OnWritten(*this); }

void AgentStream::OnClosed(const absl::Status& why) {
  absl::Status status = end_.ok() ? why : end_;
  // A coordinator says why it disconnects. A worker's control channel port waits for more, or
  // closes.
  if (status.ok() && !has_welcome_) status = NotACoordinator();
  owner_.OnEnded(*this, status);
}

}  // namespace ferry::coord
