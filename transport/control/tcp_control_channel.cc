// SPDX-License-Identifier: Apache-2.0
// Frames over a byte stream.
#include "transport/control/tcp_control_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

struct TcpFrameHead {
  uint32_t body_bytes;
  uint16_t type;
  uint16_t reserved;
};
static_assert(sizeof(TcpFrameHead) == 8);

// The largest frame, and room to read ahead of the next.
constexpr size_t kBufferBytes = sizeof(TcpFrameHead) + kMaxTcpControlBody + kMaxControlBody;
// A poll costs a quarter of a microsecond in the kernel; a peer that answers at all does so within
// this many.
constexpr int kEagerLooks = 1000;
// For the only channel polled: a turn of the loop costs a third of a poll.
constexpr int kLooksInARow = 4;
// Messages found by polling, without a sleep between, before the kernel's notifications are turned
// off.
constexpr int kFoundBeforeUnwatched = 32;
constexpr int kReadsAtOnce = 16;
// Smaller frames are assembled here first: one write is cheaper for the kernel than several.
constexpr size_t kSmallFrame = 512;
// Peeked bytes left in the socket before they are consumed: about a request and a transfer
// descriptor, since each peek walks over all of them, and idle time can be used to consume them.
constexpr size_t kMostLookedAt = 100;
// More than this in one peek came as large segments. The kernel keeps a segment, and counts all of
// it against the window, until its last byte has been consumed.
constexpr size_t kMostOfMessages = 512;

// Frames collected between Append and Kick: more are sent at once.
constexpr size_t kMostAppended = 16 * 1024;

TcpFrameHead HeadOf(uint16_t type, absl::Span<const absl::string_view> parts) {
  TcpFrameHead head = {0, type, 0};
  for (const absl::string_view part : parts) head.body_bytes += static_cast<uint32_t>(part.size());
  return head;
}

ssize_t SendPieces(int socket, absl::Span<iovec> pieces) {
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  msghdr message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  ssize_t done = 0;
  do {
    done = pieces.size() == 1 ? send(socket, pieces[0].iov_base, pieces[0].iov_len, kFlags)
                              : sendmsg(socket, &message, kFlags);
  } while (done < 0 && errno == EINTR);
  return done;
}

}  // namespace

TcpControlChannel::TcpControlChannel(EventLoop& loop, PeerId peer, UniqueFd socket,
                                     std::string description,
                                     std::shared_ptr<ControlHandler> handler,
                                     size_t max_queued_bytes)
    : loop_(loop),
      peer_(peer),
      socket_(std::move(socket)),
      description_(std::move(description)),
      max_queued_bytes_(max_queued_bytes),
      handler_(std::move(handler)),
      buffer_(kBufferBytes) {
  const int at_the_beginning = 0;
  looks_go_on_ = setsockopt(socket_.get(), SOL_SOCKET, SO_PEEK_OFF, &at_the_beginning,
                            sizeof(at_the_beginning)) == 0;
}

TcpControlChannel::~TcpControlChannel() = default;

std::shared_ptr<TcpControlChannel> TcpControlChannel::Start(EventLoop& loop, PeerId peer,
                                                            UniqueFd socket,
                                                            std::string description,
                                                            std::shared_ptr<ControlHandler> handler,
                                                            size_t max_queued_bytes) {
  auto channel = std::shared_ptr<TcpControlChannel>(new TcpControlChannel(
      loop, peer, std::move(socket), std::move(description), std::move(handler), max_queued_bytes));
  loop.Post([channel, &loop] {
    const absl::StatusOr<EventLoop::SourceId> source =
        loop.AddPolled(channel, channel->socket_.get(), EPOLLIN | EPOLLRDHUP);
    if (!source.ok()) return channel->Refuse(source.status());
    channel->source_ = *source;
    channel->is_watched_ = true;
    channel->handler_->OnOpen(channel);
    channel->OnReady(EPOLLIN | EPOLLOUT);
  });
  return channel;
}

absl::Status TcpControlChannel::Send(uint16_t type, absl::Span<const absl::string_view> parts,
                                     absl::Span<const int> descriptors) {
  FERRY_CHECK(descriptors.empty());
  FERRY_RETURN_IF_ERROR(CheckControlBody(parts, kMaxTcpControlBody));
  const TcpFrameHead head = HeadOf(type, parts);
  const size_t total = sizeof(head) + head.body_bytes;
  char room[kSmallFrame];
  absl::InlinedVector<iovec, 8> pieces;
  if (total <= sizeof(room)) {
    std::memcpy(room, &head, sizeof(head));
    char* to = room + sizeof(head);
    for (const absl::string_view part : parts) {
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
    pieces.push_back({room, total});
  } else {
    pieces.push_back({const_cast<TcpFrameHead*>(&head), sizeof(head)});
    for (const absl::string_view part : parts) {
      pieces.push_back({const_cast<char*>(part.data()), part.size()});
    }
  }

  absl::Status status;
  {
    absl::MutexLock lock(&send_mu_);
    // With what was appended before it, which is empty while anything is queued.
    if (!appended_.empty()) pieces.insert(pieces.begin(), {appended_.data(), appended_.size()});
    status = SendLocked(absl::MakeSpan(pieces));
    ClearAppended();
  }
  // Not on a closed channel, which may outlive the loop.
  if (status.ok()) ScheduleHostCheck();
  return status;
}

absl::Status TcpControlChannel::Append(uint16_t type, absl::Span<const absl::string_view> parts) {
  FERRY_RETURN_IF_ERROR(CheckControlBody(parts, kMaxTcpControlBody));
  const TcpFrameHead head = HeadOf(type, parts);
  const size_t total = sizeof(head) + head.body_bytes;
  if (total > kMostAppended) return Send(type, parts, {});
  {
    absl::MutexLock lock(&send_mu_);
    if (!closed_.ok()) return closed_;
    if (appended_.size() + total > kMostAppended) KickLocked();
    if (queue_.empty()) {
      appended_.append(reinterpret_cast<const char*>(&head), sizeof(head));
      for (const absl::string_view part : parts) appended_.append(part.data(), part.size());
      has_appended_.store(true, std::memory_order_release);
      return absl::OkStatus();
    }
  }
  return Send(type, parts, {});
}

void TcpControlChannel::Kick() {
  if (!has_appended_.load(std::memory_order_acquire)) return;
  {
    absl::MutexLock lock(&send_mu_);
    KickLocked();
    if (!closed_.ok()) return;
  }
  ScheduleHostCheck();
}

void TcpControlChannel::KickLocked() {
  if (appended_.empty()) return;
  iovec piece = {appended_.data(), appended_.size()};
  // If it fails, the channel closes, and tells its handler why.
  SendLocked({&piece, 1}).IgnoreError();
  ClearAppended();
}

void TcpControlChannel::ClearAppended() {
  appended_.clear();
  has_appended_.store(false, std::memory_order_relaxed);
}

absl::Status TcpControlChannel::SendLocked(absl::Span<iovec> pieces) {
  if (!closed_.ok()) return closed_;
  size_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  size_t sent = 0;
  if (queue_.empty()) {
    const ssize_t done = SendPieces(socket_.get(), pieces);
    if (done < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      CloseLocked(absl::UnavailableError(
          absl::StrCat("to ", ferry::Describe(peer_), ": ", ConnectionErrorText(errno))));
      return closed_;
    }
    sent = done < 0 ? 0 : static_cast<size_t>(done);
    if (sent == total) return absl::OkStatus();
  } else if (queued_bytes_ + total > max_queued_bytes_) {
    return ControlQueueIsFull(peer_, queued_bytes_, queue_.size(), max_queued_bytes_);
  }
  std::string rest;
  rest.reserve(total);
  for (const iovec& piece : pieces) {
    rest.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  }
  if (queue_.empty()) sent_of_front_ = sent;
  if (!std::exchange(watches_for_room_, true)) {
    loop_.Post([self = shared_from_this()] { self->Watch(); });
  }
  queued_bytes_ += rest.size();
  queue_.push_back(std::move(rest));
  return absl::OkStatus();
}

void TcpControlChannel::FlushLocked() {
  while (!queue_.empty() && closed_.ok()) {
    const std::string& front = queue_.front();
    const ssize_t done = send(socket_.get(), front.data() + sent_of_front_,
                              front.size() - sent_of_front_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        CloseLocked(absl::UnavailableError(
            absl::StrCat("to ", ferry::Describe(peer_), ": ", ConnectionErrorText(errno))));
      }
      return;
    }
    sent_of_front_ += static_cast<size_t>(done);
    if (sent_of_front_ < front.size()) continue;
    queued_bytes_ -= front.size();
    sent_of_front_ = 0;
    queue_.pop_front();
  }
}

void TcpControlChannel::ScheduleHostCheck() {
  if (is_host_check_scheduled_.load(std::memory_order_relaxed) ||
      is_host_check_scheduled_.exchange(true))
    return;
  loop_.PostAt(SteadyClock().Now() + host_watch_.period(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckHost();
  });
}

void TcpControlChannel::CheckHost() {
  if (is_finished_) return;
  // Cleared before the check, so that a later send schedules another one.
  is_host_check_scheduled_ = false;
  const std::optional<TcpState> state = ReadTcpState(socket_.get());
  if (!state.has_value()) return;
  const absl::Status status = host_watch_.Look(*state, SteadyClock().Now());
  if (!status.ok()) {
    return Close(absl::UnavailableError(
        absl::StrCat("to ", ferry::Describe(peer_), ": ", status.message())));
  }
  if (host_watch_.is_waiting()) ScheduleHostCheck();
}

void TcpControlChannel::Flush() {
  absl::MutexLock lock(&send_mu_);
  FlushLocked();
}

absl::Status TcpControlChannel::ReadFrames(Frames& frames) {
  while (frames.size() < kFramesAtOnce && end_ - begin_ >= sizeof(TcpFrameHead)) {
    TcpFrameHead head;
    std::memcpy(&head, buffer_.data() + begin_, sizeof(head));
    if (head.body_bytes > kMaxTcpControlBody) {
      return absl::InvalidArgumentError(
          absl::StrCat(ferry::Describe(peer_), " sends a message of ", head.body_bytes, " bytes"));
    }
    if (end_ - begin_ < sizeof(head) + head.body_bytes) break;
    const absl::string_view body(buffer_.data() + begin_ + sizeof(head), head.body_bytes);
    begin_ += sizeof(head) + head.body_bytes;
    frames.push_back({.type = head.type, .body = body});
  }
  return absl::OkStatus();
}

absl::Status TcpControlChannel::DeliverFrames() {
  while (true) {
    Frames frames;
    const absl::Status status = ReadFrames(frames);
    // Those before a malformed one are delivered.
    if (!frames.empty()) FERRY_RETURN_IF_ERROR(handler_->OnFrames(frames));
    FERRY_RETURN_IF_ERROR(status);
    if (is_closing_.load(std::memory_order_acquire)) return absl::OkStatus();
    if (frames.size() < kFramesAtOnce) break;
  }
  MakeRoom();
  return absl::OkStatus();
}

void TcpControlChannel::MakeRoom() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    return;
  }
  size_t frame = sizeof(TcpFrameHead);
  if (end_ - begin_ >= frame) {
    TcpFrameHead head;
    std::memcpy(&head, buffer_.data() + begin_, sizeof(head));
    frame += head.body_bytes;
  }
  if (buffer_.size() - begin_ >= frame && buffer_.size() - end_ >= kMaxControlBody) return;
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
}

void TcpControlChannel::ConsumePeeked() {
  size_t left = std::exchange(looked_at_, 0);
  while (left > 0) {
    // MSG_TRUNC discards: nothing is written, though AddressSanitizer assumes so.
    const ssize_t taken = recv(socket_.get(), buffer_.data(), std::min(left, buffer_.size()),
                               MSG_DONTWAIT | MSG_TRUNC);
    if (taken <= 0) return;
    left -= static_cast<size_t>(taken);
  }
}

void TcpControlChannel::Watch() {
  if (is_finished_) return;
  found_by_looking_ = 0;
  // Bytes already read must not trigger a notification.
  ConsumePeeked();
  uint32_t events = EPOLLIN | EPOLLRDHUP;
  {
    absl::MutexLock lock(&send_mu_);
    watches_for_room_ = !queue_.empty();
    if (watches_for_room_) events |= EPOLLOUT;
  }
  const absl::Status status = loop_.Watch(source_, socket_.get(), events);
  is_watched_ = true;
  if (!status.ok()) Close(status);
}

void TcpControlChannel::Unwatch() {
  {
    absl::MutexLock lock(&send_mu_);
    if (!queue_.empty()) return;
    watches_for_room_ = false;
  }
  loop_.Unwatch(socket_.get());
  is_watched_ = false;
}

bool TcpControlChannel::ReadOnce() {
  if (is_finished_ || is_closing_.load(std::memory_order_acquire)) return false;
  // The kernel acknowledges the second small segment in a row before it returns it, which is half
  // of a message's cost. It does not for bytes that are only peeked: the reply carries the
  // acknowledgement. Where peeks continue from each other, bytes are consumed now and then, else
  // before the next peek.
  if (looked_at_ > (looks_go_on_ && !is_bulk_ ? kMostLookedAt : 0)) ConsumePeeked();
  const ssize_t got =
      recv(socket_.get(), buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT | MSG_PEEK);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    is_bulk_ = false;
    return false;
  }
  absl::Status status;
  if (got < 0) {
    status = absl::UnavailableError(
        absl::StrCat("from ", ferry::Describe(peer_), ": ", ConnectionErrorText(errno)));
  } else if (got == 0) {
    status = PeerHasGone(peer_);
  } else {
    looked_at_ += static_cast<size_t>(got);
    is_bulk_ |= static_cast<size_t>(got) > kMostOfMessages;
    end_ += static_cast<size_t>(got);
    eager_looks_ = kEagerLooks;
    status = DeliverFrames();
  }
  if (!status.ok()) Close(status);
  return status.ok();
}

bool TcpControlChannel::Poll() {
  if (is_finished_) return false;
  bool did_something = false;
  const int looks = std::min(eager_looks_, loop_.PollsOneSource() ? kLooksInARow : 1);
  for (int i = 0; i < looks && !did_something; ++i) {
    --eager_looks_;
    did_something = ReadOnce();
  }
  if (did_something && is_watched_ && ++found_by_looking_ >= kFoundBeforeUnwatched) Unwatch();
  if (eager_looks_ == 0) {
    ConsumePeeked();
    if (!is_watched_) Watch();
  }
  if (is_closing_.load(std::memory_order_acquire)) Finish();
  return did_something;
}

bool TcpControlChannel::HasWork() {
  Kick();
  found_by_looking_ = 0;
  // Nothing polls for a while, and the peer may be waiting for this window space.
  ConsumePeeked();
  if (!is_watched_) Watch();
  return !is_finished_ && is_closing_.load(std::memory_order_acquire);
}

void TcpControlChannel::OnReady(uint32_t events) {
  if (is_finished_) return;
  if ((events & EPOLLOUT) != 0) Flush();
  for (int i = 0; i < kReadsAtOnce; ++i) {
    if (!ReadOnce()) {
      if (is_closing_.load(std::memory_order_acquire)) Finish();
      return;
    }
  }
  // Let other sources run first; the edge is not reported again.
  loop_.Post([self = shared_from_this()] { self->OnReady(EPOLLIN); });
}

void TcpControlChannel::CloseLocked(const absl::Status& why) {
  if (!closed_.ok()) return;
  closed_ = why;
  is_closing_.store(true, std::memory_order_release);
  loop_.Post([self = shared_from_this()] { self->Finish(); });
}

void TcpControlChannel::Close(const absl::Status& why) {
  absl::MutexLock lock(&send_mu_);
  CloseLocked(why);
}

void TcpControlChannel::Refuse(const absl::Status& why) {
  Close(absl::Status(why.code(), absl::StrCat("no control channel to ", ferry::Describe(peer_),
                                              ": ", why.message())));
  Finish();
}

void TcpControlChannel::Finish() {
  if (is_finished_) return;
  is_finished_ = true;
  loop_.Remove(source_, socket_.get());
  absl::Status why;
  {
    absl::MutexLock lock(&send_mu_);
    why = closed_;
    queue_.clear();
    ClearAppended();
  }
  // Closing a socket with unread bytes sends a reset, and the last frames sent might never arrive.
  ConsumePeeked();
  shutdown(socket_.get(), SHUT_RDWR);
  std::exchange(handler_, nullptr)->OnClosed(why);
}

}  // namespace ferry
