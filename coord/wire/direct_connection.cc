// SPDX-License-Identifier: Apache-2.0
// Connecting, writing and closing.
#include "coord/wire/direct_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/file_limit.h"

namespace ferry::coord {
namespace {

constexpr size_t kMaxPieces = 16;
// Limit per turn, so that a client that reads as fast as the server writes does not starve others.
constexpr size_t kBytesInTurn = size_t{4} << 20;
// If there are more addresses to try: a reachable host answers within this time.
constexpr absl::Duration kLongestOfOne = absl::Seconds(5);

}  // namespace

void DirectConnection::Accept(UniqueFd fd, absl::Duration idle, absl::Duration timeout) {
  wants_preface_ = true;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    fd_ = std::move(fd);
    SetSocketOptions(idle, timeout);
    is_connected_ = true;
    // The loop may call it before the id is stored; it waits for the lock then.
    const auto added = loop_.Add(shared_from_this(), fd_.get(), EPOLLIN);
    status = added.status();
    source_ = added.value_or(0);
  }
  if (!status.ok()) Close(std::move(status));
}

void DirectConnection::Connect(std::vector<SocketAddress> addresses) {
  loop_.Post([self = shared_from_this(), addresses = std::move(addresses)]() mutable {
    self->addresses_ = std::move(addresses);
    self->connect_failure_ = absl::UnavailableError("the host has no address");
    self->TryNext();
  });
}

void DirectConnection::TryNext() {
  is_connecting_ = true;
  while (next_address_ < addresses_.size()) {
    const SocketAddress& address = addresses_[next_address_++];
    int error = 0;
    {
      absl::MutexLock lock(&mu_);
      if (is_closed_) return;
      if (fd_.valid()) loop_.Remove(source_, fd_.get());
      fd_ = BeginConnect(address);
      error = errno;
      if (fd_.valid()) {
        const auto added = loop_.Add(shared_from_this(), fd_.get(), EPOLLOUT);
        if (added.ok()) {
          source_ = *added;
          if (next_address_ < addresses_.size()) TryNextAddressAfter(kLongestOfOne, next_address_);
          return;
        }
        // Not an answer of the coordinator, but a local shortage that may pass.
        connect_failure_ = absl::UnavailableError(added.status().message());
        fd_.Reset();
        continue;
      }
    }
    connect_failure_ = absl::UnavailableError(
        absl::StrCat("connecting to ", ShowAddress(address), ": ", ErrorWithFileLimit(error)));
  }
  CloseNow(connect_failure_);
}

void DirectConnection::TryNextAddressAfter(absl::Duration timeout, size_t next_address) {
  loop_.PostAfter(timeout, [weak = weak_from_this(), timeout, next_address] {
    const std::shared_ptr<DirectConnection> self = weak.lock();
    if (self == nullptr || !self->is_connecting_ || self->next_address_ != next_address) return;
    self->connect_failure_ = absl::UnavailableError(
        absl::StrCat("connecting to ", ShowAddress(self->addresses_[next_address - 1]),
                     ": no answer within ", absl::FormatDuration(timeout)));
    self->TryNext();
  });
}

void DirectConnection::FinishConnecting() {
  bool is_drained = false;
  {
    absl::MutexLock lock(&mu_);
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) {
      connect_failure_ = absl::UnavailableError(
          absl::StrCat("connecting to ", ShowAddress(addresses_[next_address_ - 1]), ": ",
                       std::strerror(error)));
    } else {
      SetSocketOptions(kDirectIdle, kDirectTimeout);
      is_connecting_ = false;
      is_connected_ = true;
      out_.insert(out_.begin(), grpc::Slice(kDirectPreface.data(), kDirectPreface.size()));
      is_drained = FlushLocked() && std::exchange(owes_drained_, false);
      WatchOutput(out_next_ < out_.size());
    }
  }
  if (is_connecting_) return TryNext();
  if (is_drained) OnDrained();
}

void DirectConnection::SetSocketOptions(absl::Duration idle, absl::Duration timeout) {
  TuneConnection(fd_.get(), idle, timeout);
  host_watch_ = HostWatch(idle + timeout);
}

void DirectConnection::ScheduleHostCheck() {
  if (std::exchange(is_host_check_scheduled_, true)) return;
  loop_.PostAfter(host_watch_.period(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckHost();
  });
}

void DirectConnection::CheckHost() {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    is_host_check_scheduled_ = false;
    if (is_closed_) return;
    const std::optional<TcpState> state = ReadTcpState(fd_.get());
    if (!state.has_value()) return;
    status = host_watch_.Look(*state, SteadyClock().Now());
    if (status.ok() && host_watch_.is_waiting()) ScheduleHostCheck();
  }
  if (!status.ok()) {
    CloseNow(absl::UnavailableError(absl::StrCat("the connection broke: ", status.message())));
  }
}

void DirectConnection::WatchLocked() {
  const bool wants_output = out_next_ < out_.size();
  if (wants_output != is_watching_output_) WatchOutput(wants_output);
}

void DirectConnection::WatchOutput(bool wants_output) {
  is_watching_output_ = wants_output;
  const uint32_t events = wants_output ? EPOLLIN | EPOLLOUT : EPOLLIN;
  // Changing the events of a descriptor that is watched already takes no resources.
  loop_.Watch(source_, fd_.get(), events).IgnoreError();
}

bool DirectConnection::SendFrame(absl::Span<const grpc::Slice> slices, bool is_last) {
  DirectHeader header{.is_last = is_last};
  for (const grpc::Slice& slice : slices) header.bytes += slice.size();
  uint8_t head[kDirectHeaderBytes];
  absl::MutexLock lock(&mu_);
  if (is_closed_ || has_sent_last_) return false;
  if (header.bytes > kMaxDirectFrameBytes) {
    // The sender's limits should prevent this.
    loop_.Post([self = shared_from_this()] {
      self->CloseNow(absl::ResourceExhaustedError("a frame of 2 GiB or more"));
    });
    return false;
  }
  WriteDirectHeader(header, head);
  has_sent_last_ = is_last;
  size_t sent = 0;
  if (is_connected_ && out_.empty() && slices.size() < kMaxPieces) {
    absl::InlinedVector<iovec, kMaxPieces> pieces = {{head, sizeof(head)}};
    for (const grpc::Slice& slice : slices) {
      if (slice.size() > 0) {
        pieces.push_back({const_cast<uint8_t*>(slice.begin()), slice.size()});
      }
    }
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t result = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    ScheduleHostCheck();
    // Errors other than EAGAIN recur when reading.
    if (result > 0) sent = static_cast<size_t>(result);
    if (sent == sizeof(head) + header.bytes) {
      if (is_last) shutdown(fd_.get(), SHUT_WR);
      return true;
    }
  }
  // Queue the rest.
  const bool was_empty = out_.empty();
  out_.push_back(grpc::Slice(head, sizeof(head)));
  out_.insert(out_.end(), slices.begin(), slices.end());
  if (was_empty) {
    while (out_next_ < out_.size() && sent >= out_[out_next_].size()) {
      sent -= out_[out_next_++].size();
    }
    out_offset_ = sent;
  }
  owes_drained_ = true;
  if (is_connected_) WatchLocked();
  return false;
}

bool DirectConnection::FlushLocked() {
  for (size_t total = 0; out_next_ < out_.size();) {
    if (total >= kBytesInTurn) return false;
    iovec pieces[kMaxPieces];
    size_t count = 0;
    size_t bytes = 0;
    for (size_t i = out_next_; i < out_.size() && count < kMaxPieces; ++i) {
      const size_t skipped = i == out_next_ ? out_offset_ : 0;
      pieces[count] = {const_cast<uint8_t*>(out_[i].begin()) + skipped, out_[i].size() - skipped};
      bytes += pieces[count++].iov_len;
    }
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    const ssize_t result = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0) return false;
    ScheduleHostCheck();
    size_t sent = static_cast<size_t>(result);
    total += sent;
    const bool is_all = sent == bytes;
    while (out_next_ < out_.size() && sent >= out_[out_next_].size() - out_offset_) {
      sent -= out_[out_next_].size() - out_offset_;
      out_[out_next_++] = grpc::Slice();
      out_offset_ = 0;
    }
    out_offset_ += sent;
    if (!is_all) return false;
  }
  out_ = {};
  out_next_ = 0;
  out_offset_ = 0;
  if (has_sent_last_) shutdown(fd_.get(), SHUT_WR);
  return true;
}

void DirectConnection::OnReady(uint32_t events) {
  if (is_connecting_) return FinishConnecting();
  bool is_drained = false;
  if ((events & EPOLLOUT) != 0) {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return;
    is_drained = FlushLocked() && std::exchange(owes_drained_, false);
    WatchLocked();
  }
  if (is_drained) OnDrained();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) Read();
}

void DirectConnection::Close(absl::Status why) {
  loop_.Post([self = shared_from_this(), why = std::move(why)] { self->CloseNow(why); });
}

void DirectConnection::OnLoopEnd() { CloseNow(absl::UnavailableError("this end is stopping")); }

void DirectConnection::CloseNow(const absl::Status& why) {
  // The loop may have held the last reference.
  const std::shared_ptr<DirectConnection> self = shared_from_this();
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return;
    is_closed_ = true;
    if (fd_.valid()) {
      loop_.Remove(source_, fd_.get());
      // Lets the other end notice, even if a child of this process has inherited the socket.
      shutdown(fd_.get(), SHUT_RDWR);
    }
    fd_.Reset();
    out_ = {};
    out_next_ = 0;
    out_offset_ = 0;
  }
  OnClosed(why);
}

}  // namespace ferry::coord
