// SPDX-License-Identifier: Apache-2.0
// Moves slices from tensors into sockets, and back.
#include "transport/tcp/data_plane.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "tensor/check_values.h"

namespace ferry {
namespace {

// System calls in a row before the thread's other connections get their turn.
constexpr int kCallsAtOnce = 32;
constexpr size_t kWasteBytes = 64 * 1024;
// Fruitless polls, one per turn of the loop: some tens of microseconds, less than a wake-up takes.
constexpr int kLooksInVain = 32;

absl::Status SocketError(absl::string_view what, int error) {
  return absl::UnavailableError(
      absl::StrCat("data connection: ", what, ": ", ConnectionErrorText(error)));
}

}  // namespace

SliceWriter::SliceWriter(EventLoop& loop, UniqueFd socket, std::weak_ptr<SliceSource> source)
    : loop_(loop), socket_(std::move(socket)), source_(std::move(source)) {
  TuneTcpSender(socket_.get());
}

void SliceWriter::Start() {
  loop_.Post([self = shared_from_this()] {
    if (self->is_stopped_) return;
    const absl::StatusOr<EventLoop::SourceId> id =
        self->loop_.Add(self, self->socket_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    if (!id.ok()) return self->Break(id.status());
    self->id_ = *id;
    self->Advance();
  });
}

void SliceWriter::Kick() {
  if (is_kicked_.exchange(true, std::memory_order_acq_rel)) return;
  loop_.Post([self = shared_from_this()] {
    self->is_kicked_.store(false, std::memory_order_release);
    self->Advance();
  });
}

void SliceWriter::Stop() {
  loop_.Post([self = shared_from_this()] {
    if (self->is_stopped_.exchange(true)) return;
    self->loop_.Remove(self->id_, self->socket_.get());
    shutdown(self->socket_.get(), SHUT_RDWR);
    // Releases the slice.
    self->Advance();
  });
}

void SliceWriter::Break(const absl::Status& why) {
  if (is_stopped_.exchange(true)) return;
  loop_.Remove(id_, socket_.get());
  shutdown(socket_.get(), SHUT_RDWR);
  Advance();
  if (const auto source = source_.lock()) source->OnBroken(why);
}

void SliceWriter::ScheduleHostCheck() {
  if (is_host_check_scheduled_.load(std::memory_order_relaxed) ||
      is_host_check_scheduled_.exchange(true))
    return;
  loop_.PostAt(SteadyClock().Now() + host_watch_.period(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckHost();
  });
}

void SliceWriter::CheckHost() {
  if (is_stopped_) return;
  // Cleared before the check, so that a later send schedules another one.
  is_host_check_scheduled_ = false;
  const std::optional<TcpState> state = ReadTcpState(socket_.get());
  if (!state.has_value()) return;
  const absl::Status status = host_watch_.Look(*state, SteadyClock().Now());
  if (!status.ok()) {
    return Break(absl::UnavailableError(absl::StrCat("data connection: ", status.message())));
  }
  if (host_watch_.is_waiting()) ScheduleHostCheck();
}

std::string SliceWriter::Obstacle() const {
  const std::optional<TcpState> state = ReadTcpState(socket_.get());
  return state.has_value() ? DescribeObstacle(*state) : "";
}

void SliceWriter::OnReady(uint32_t events) {
  if (is_stopped_) return;
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    // The receiver never sends anything here.
    char byte;
    const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
    if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      return Break(got > 0 ? absl::InvalidArgumentError("a receiver that speaks")
                           : SocketError("closed by the receiver", got == 0 ? ECONNRESET : errno));
    }
  }
  Advance();
}

void SliceWriter::Advance() {
  if (advances_.fetch_add(1, std::memory_order_acq_rel) > 0) return;
  uint32_t seen = 1;
  do {
    Write();
  } while (!advances_.compare_exchange_strong(seen, 0, std::memory_order_acq_rel));
}

void SliceWriter::Write() {
  for (int i = 0; i < kCallsAtOnce && !is_stopped_; ++i) {
    if (sent_ == total_) {
      slice_ = {};
      const auto source = source_.lock();
      if (source == nullptr || !source->NextSlice(*this, slice_)) {
        sent_ = total_ = 0;
        return;
      }
      header_ = {.transfer = slice_.transfer->id,
                 .offset = slice_.offset,
                 .bytes = static_cast<uint32_t>(slice_.bytes)};
      sent_ = 0;
      total_ = sizeof(header_) + slice_.bytes;
    }
    iovec pieces[2];
    int count = 0;
    size_t skip = sent_;
    if (skip < sizeof(header_)) {
      pieces[count++] = {reinterpret_cast<char*>(&header_) + skip, sizeof(header_) - skip};
      skip = 0;
    } else {
      skip -= sizeof(header_);
    }
    const char* const data = static_cast<const char*>(slice_.transfer->tensor.data());
    pieces[count++] = {const_cast<char*>(data + slice_.offset + skip), slice_.bytes - skip};
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return Break(SocketError("while sending", errno));
    }
    ScheduleHostCheck();
    sent_ += static_cast<size_t>(sent);
  }
  if (!is_stopped_) return Kick();
  slice_ = {};
}

SliceReader::SliceReader(EventLoop& loop, UniqueFd socket, std::weak_ptr<SliceSink> sink)
    : loop_(loop), socket_(std::move(socket)), sink_(std::move(sink)) {}

void SliceReader::Start() {
  loop_.Post([self = shared_from_this()] {
    if (self->is_stopped_) return;
    const absl::StatusOr<EventLoop::SourceId> id =
        self->loop_.Add(self, self->socket_.get(), EPOLLIN | EPOLLRDHUP);
    if (!id.ok()) return self->Break(id.status());
    self->id_ = *id;
    self->Advance();
  });
}

void SliceReader::Resume() {
  loop_.Post([self = shared_from_this()] { self->Advance(); });
}

void SliceReader::PollForArrival(size_t bytes) {
  if (!loop_.IsOnLoop()) {
    return loop_.Post([self = shared_from_this(), bytes] { self->PollForArrival(bytes); });
  }
  looked_for_ += bytes;
  looks_left_ = kLooksInVain;
  Advance();
}

void SliceReader::Stop() {
  loop_.Post([self = shared_from_this()] {
    if (self->is_stopped_) return;
    self->is_stopped_ = true;
    self->loop_.Remove(self->id_, self->socket_.get());
    shutdown(self->socket_.get(), SHUT_RDWR);
    self->target_ = {};
  });
}

void SliceReader::Break(const absl::Status& why) {
  is_stopped_ = true;
  loop_.Remove(id_, socket_.get());
  shutdown(socket_.get(), SHUT_RDWR);
  target_ = {};
  if (const auto sink = sink_.lock()) sink->OnBroken(why);
}

void SliceReader::OnReady(uint32_t) { Advance(); }

void SliceReader::Advance() {
  // Already reading further up the stack, which continues anyway.
  if (std::exchange(is_advancing_, true)) return;
  Read();
  is_advancing_ = false;
}

void SliceReader::Read() {
  for (int i = 0; i < kCallsAtOnce && !is_stopped_; ++i) {
    if (header_bytes_ == sizeof(header_) && !has_target_) {
      const auto sink = sink_.lock();
      if (sink == nullptr) return;
      switch (sink->FindTarget(header_, &target_)) {
        case SliceSink::Verdict::kRead:
          break;
        case SliceSink::Verdict::kWait:
          return;
        case SliceSink::Verdict::kSkip:
          target_ = {};
          break;
        case SliceSink::Verdict::kError:
          return Break(absl::InvalidArgumentError("a slice of an unknown transfer"));
      }
      has_target_ = true;
      got_ = 0;
    }
    // The rest of the slice, and the next header in the same call.
    SliceHeader next;
    iovec pieces[2];
    int count = 0;
    size_t wanted = 0;
    if (has_target_) {
      wanted = header_.bytes - got_;
      char* to = target_.data == nullptr ? nullptr : target_.data + got_;
      if (to == nullptr) {
        waste_.resize(kWasteBytes);
        wanted = std::min(wanted, kWasteBytes);
        to = waste_.data();
      }
      pieces[count++] = {to, wanted};
      if (got_ + wanted == header_.bytes) pieces[count++] = {&next, sizeof(next)};
    } else {
      pieces[count++] = {reinterpret_cast<char*>(&header_) + header_bytes_,
                         sizeof(header_) - header_bytes_};
    }
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<size_t>(count);
    ssize_t got = 0;
    const auto receive = [&] {
      got = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
      if (got <= 0 || target_.has_non_boolean == nullptr) return;
      // The kernel has just written the bytes, so they are in the caches.
      const size_t here = std::min(static_cast<size_t>(got), wanted);
      if (FindNonBoolean(pieces[0].iov_base, here).has_value()) {
        target_.has_non_boolean->store(true, std::memory_order_relaxed);
      }
    };
    if (!has_target_ || target_.data == nullptr) {
      receive();
    } else if (!target_.gate->Pass(receive)) {
      // Cancelled.
      target_ = {};
      continue;
    }
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        return Break(SocketError("while receiving", errno));
      }
      if (looked_for_ > 0 && looks_left_-- > 0) Resume();
      return;
    }
    if (got == 0) return Break(SocketError("closed by the sender", ECONNRESET));
    const auto bytes = static_cast<size_t>(got);
    looks_left_ = kLooksInVain;
    if (!has_target_) {
      header_bytes_ += bytes;
      continue;
    }
    const size_t of_slice = std::min(bytes, wanted);
    got_ += of_slice;
    if (got_ < header_.bytes) continue;
    const SliceHeader done = header_;
    has_target_ = false;
    target_ = {};
    header_bytes_ = bytes - of_slice;
    if (header_bytes_ > 0) header_ = next;
    looked_for_ -= std::min<size_t>(looked_for_, done.bytes);
    const auto sink = sink_.lock();
    if (sink == nullptr) return;
    sink->OnSlice(done);
  }
  if (!is_stopped_) Resume();
}

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::Create(int connections) {
  auto plane = std::make_unique<DataPlane>();
  for (int i = 0; i < connections; ++i) {
    FERRY_ASSIGN_OR_RETURN(auto loop, EventLoop::Create({.spin = absl::ZeroDuration(),
                                                         .name = absl::StrCat("ferry-data-", i)}));
    plane->loops_.push_back(std::move(loop));
  }
  return plane;
}

}  // namespace ferry
