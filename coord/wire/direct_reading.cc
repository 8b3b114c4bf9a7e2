// SPDX-License-Identifier: Apache-2.0
// Reads frames.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "coord/wire/direct_connection.h"

namespace ferry::coord {
namespace {

// Frames of at least this size are read into their own buffer, which may be kept.
constexpr size_t kWholeBytes = 8192;
// The most memory allocated for an announced frame; the buffer then grows as data arrives.
constexpr size_t kFirstBytes = size_t{1} << 20;
static_assert(kFirstBytes > SocketLoop::kScratchBytes);
// Limits per turn, so that one busy connection does not starve the others: this many pieces of a
// large frame, which are only copied; for small frames, which are processed, one piece
// (kScratchBytes), or as many as take this long.
constexpr int kPiecesInTurn = 16;
constexpr absl::Duration kTurn = absl::Milliseconds(1);

absl::Status Lost(int error) {
  return absl::UnavailableError(absl::StrCat("the connection broke: ", std::strerror(error)));
}

}  // namespace

void DirectConnection::Read() {
  int socket = -1;
  bool has_ended = false;
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_ || ignores_input_ || !backlog_.empty()) return;
    // Only this thread closes it.
    socket = fd_.get();
    has_ended = has_sent_last_;
  }
  if (has_ended) {
    // Input is dropped; only the end is awaited.
    whole_ = grpc::Slice();
    whole_bytes_ = 0;
    partial_ = {};
  }
  for (int i = 0; i < kPiecesInTurn; ++i) {
    char* to = loop_.scratch();
    size_t room = SocketLoop::kScratchBytes;
    const bool is_whole = whole_bytes_ > 0;
    if (is_whole) {
      if (whole_have_ == whole_.size()) {
        grpc::Slice larger(std::min(whole_bytes_, 2 * whole_have_));
        std::memcpy(const_cast<uint8_t*>(larger.begin()), whole_.begin(), whole_have_);
        whole_ = std::move(larger);
      }
      to = reinterpret_cast<char*>(const_cast<uint8_t*>(whole_.begin())) + whole_have_;
      room = whole_.size() - whole_have_;
    }
    const ssize_t result = recv(socket, to, room, MSG_DONTWAIT);
    if (result < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      return CloseNow(Lost(errno));
    }
    if (result == 0) {
      return CloseNow(whole_bytes_ > 0 || !partial_.empty()
                          ? absl::UnavailableError("the connection ended within a frame")
                          : absl::OkStatus());
    }
    const size_t bytes = static_cast<size_t>(result);
    OnBytes();
    if (has_ended) continue;
    if (is_whole) {
      whole_have_ += bytes;
      if (whole_have_ == whole_bytes_ && !TakeWhole()) return Ignore();
    } else if (!Take(absl::string_view(to, bytes))) {
      return Ignore();
    }
    // Less than requested: nothing is left. Otherwise the loop calls again.
    if (bytes < room || (!is_whole && whole_bytes_ == 0)) return;
  }
}

bool DirectConnection::TakeWhole() {
  const grpc::Slice whole = std::exchange(whole_, grpc::Slice());
  const size_t bytes = std::exchange(whole_bytes_, 0);
  whole_have_ = 0;
  return OnFrame({.bytes = {reinterpret_cast<const char*>(whole.begin()), bytes},
                  .is_last = whole_is_last_,
                  .whole = &whole});
}

bool DirectConnection::Take(absl::string_view bytes) {
  if (wants_preface_) {
    const size_t seen = std::min(bytes.size(), kDirectPreface.size() - preface_seen_);
    if (bytes.substr(0, seen) != kDirectPreface.substr(preface_seen_, seen)) {
      OnRefused(absl::InvalidArgumentError(
          absl::StrCat("the connection does not begin as an agent's of this version does, with ",
                       absl::CEscape(kDirectPreface))));
      return false;
    }
    preface_seen_ += seen;
    bytes.remove_prefix(seen);
    wants_preface_ = preface_seen_ < kDirectPreface.size();
  }
  return TakeForOneTurn(bytes);
}

bool DirectConnection::TakeForOneTurn(absl::string_view bytes) {
  if (!TakeFrames(bytes, SteadyClock().Now() + kTurn)) return false;
  if (bytes.empty()) return true;
  backlog_.assign(bytes.data(), bytes.size());
  loop_.Post([self = shared_from_this()] { self->TakeBacklog(); });
  return true;
}

void DirectConnection::Ignore() {
  absl::MutexLock lock(&mu_);
  // After our last frame, the other end's close is awaited; otherwise the connection is being
  // closed.
  ignores_input_ = !has_sent_last_;
}

void DirectConnection::TakeBacklog() {
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_ || ignores_input_) return;
    // Input after the end is dropped.
    if (has_sent_last_) backlog_ = {};
  }
  const std::string backlog = std::exchange(backlog_, {});
  if (!TakeForOneTurn(backlog)) Ignore();
}

bool DirectConnection::TakeFrames(absl::string_view& bytes, absl::Time until) {
  // The clock is read only now and then: a frame may take less time than that.
  for (int frames = 1; !bytes.empty(); ++frames) {
    if (frames % 8 == 0 && SteadyClock().Now() >= until) return true;
    if (whole_bytes_ > 0) {
      // Started by the header that was in partial_.
      const size_t more = std::min(bytes.size(), whole_.size() - whole_have_);
      std::memcpy(const_cast<uint8_t*>(whole_.begin()) + whole_have_, bytes.data(), more);
      whole_have_ += more;
      bytes.remove_prefix(more);
      if (whole_have_ == whole_bytes_ && !TakeWhole()) return false;
      if (whole_bytes_ > 0) return true;
    } else if (!partial_.empty()) {
      if (!TakePartial(bytes)) return false;
    } else {
      if (bytes.size() < kDirectHeaderBytes) {
        partial_.assign(bytes.data(), bytes.size());
        bytes = {};
        return true;
      }
      const DirectHeader header = ReadDirectHeader(bytes.data());
      const absl::string_view content = bytes.substr(kDirectHeaderBytes);
      if (content.size() < header.bytes) {
        if (header.bytes >= kWholeBytes) {
          bytes = {};
          return BeginWhole(header, content);
        }
        partial_.assign(bytes.data(), bytes.size());
        bytes = {};
        return true;
      }
      bytes.remove_prefix(kDirectHeaderBytes + header.bytes);
      if (!OnFrame({.bytes = content.substr(0, header.bytes), .is_last = header.is_last})) {
        return false;
      }
    }
  }
  return true;
}

bool DirectConnection::TakePartial(absl::string_view& bytes) {
  const auto append_up_to = [&](size_t wanted) {
    const size_t taken = std::min(bytes.size(), wanted - partial_.size());
    partial_.append(bytes.data(), taken);
    bytes.remove_prefix(taken);
    return partial_.size() == wanted;
  };
  if (partial_.size() < kDirectHeaderBytes && !append_up_to(kDirectHeaderBytes)) return true;
  const DirectHeader header = ReadDirectHeader(partial_.data());
  if (header.bytes >= kWholeBytes) {
    partial_ = {};
    return BeginWhole(header, {});
  }
  if (!append_up_to(kDirectHeaderBytes + header.bytes)) return true;
  const std::string frame = std::exchange(partial_, {});
  return OnFrame(
      {.bytes = absl::string_view(frame).substr(kDirectHeaderBytes), .is_last = header.is_last});
}

bool DirectConnection::BeginWhole(DirectHeader header, absl::string_view content) {
  if (absl::Status status = CheckFrameSize(header.bytes); !status.ok()) {
    OnRefused(status);
    return false;
  }
  whole_bytes_ = header.bytes;
  whole_is_last_ = header.is_last;
  whole_ = grpc::Slice(std::min(header.bytes, kFirstBytes));
  std::copy(content.begin(), content.end(),
            reinterpret_cast<char*>(const_cast<uint8_t*>(whole_.begin())));
  whole_have_ = content.size();
  return true;
}

}  // namespace ferry::coord
