// SPDX-License-Identifier: Apache-2.0
// The two ends of a socket pair: one reads what the other says before it is closed.
#include "transport/cuda_ipc/peer_lifeline.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/file_limit.h"

namespace ferry {

absl::StatusOr<PeerLifeline::Made> PeerLifeline::Make() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot create a socket pair to notice the peer's death: ", ErrorWithFileLimit(errno)));
  }
  return Made{PeerLifeline(UniqueFd(ends[0])), UniqueFd(ends[1])};
}

PeerLifeline::State PeerLifeline::Look() {
  char said = 0;
  while (state_ == State::kHeld) {
    const ssize_t got = recv(end_.get(), &said, 1, MSG_DONTWAIT);
    if (got > 0) {
      state_ = State::kClosed;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      state_ = State::kDied;
    } else if (errno == EAGAIN) {
      break;
    }
  }
  return state_;
}

ReceivedLifelines::~ReceivedLifelines() {
  absl::MutexLock lock(&mu_);
  if (!end_.valid()) return;
  // The owner may be gone.
  [[maybe_unused]] const ssize_t sent = send(end_.get(), "c", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ReceivedLifelines::Add(UniqueFd end) {
  absl::MutexLock lock(&mu_);
  if (!end_.valid()) end_ = std::move(end);
}

}  // namespace ferry
