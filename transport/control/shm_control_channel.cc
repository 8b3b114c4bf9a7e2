// SPDX-License-Identifier: Apache-2.0
// The rings, the descriptor socket, and the queue of frames that wait for room.
#include "transport/control/shm_control_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/control/descriptors.h"

namespace ferry {
namespace {

constexpr size_t kRingCapacity = 512 * 1024;
static_assert(kRingCapacity / 4 >= kMaxControlBody + kRingFrameHeader);
constexpr size_t kOneRing = kRingControlBytes + kRingCapacity;
// Frames handled in a row before other sources get their turn.
constexpr size_t kFramesAtOnce = 64;
// Bytes of bodies from which on the frames read so far are delivered and released.
constexpr size_t kMaxUnreleased = kRingCapacity / 16;
// Polls of the socket, at a third of a microsecond each; sending descriptors takes three.
constexpr int kLooksForDescriptors = 16;

char* RingAt(const MemorySegment& rings, bool first) {
  return static_cast<char*>(rings.base()) + (first ? 0 : kOneRing);
}

}  // namespace

size_t ShmControlChannel::RingsBytes() { return (2 * kOneRing + 4095) / 4096 * 4096; }

ShmControlChannel::ShmControlChannel(EventLoop& loop, PeerId peer, UniqueFd socket, Memory memory,
                                     bool is_first, std::shared_ptr<ControlHandler> handler,
                                     size_t max_queued_bytes)
    : loop_(loop),
      peer_(peer),
      socket_(std::move(socket)),
      memory_(std::move(memory)),
      max_queued_bytes_(max_queued_bytes),
      reader_(RingAt(memory_.rings, !is_first), kRingCapacity),
      handler_(std::move(handler)),
      writer_(RingAt(memory_.rings, is_first), kRingCapacity) {}

ShmControlChannel::~ShmControlChannel() = default;

std::shared_ptr<ShmControlChannel> ShmControlChannel::Start(EventLoop& loop, PeerId peer,
                                                            UniqueFd socket, Memory memory,
                                                            bool is_first,
                                                            std::shared_ptr<ControlHandler> handler,
                                                            size_t max_queued_bytes) {
  auto channel = std::shared_ptr<ShmControlChannel>(
      new ShmControlChannel(loop, peer, std::move(socket), std::move(memory), is_first,
                            std::move(handler), max_queued_bytes));
  // On the loop, so that no source is called before it knows its own id. The socket is watched for
  // hang-up only: frames announce their descriptors, so no wake-up is duplicated.
  loop.Post([channel, &loop] {
    const absl::StatusOr<EventLoop::SourceId> source =
        loop.AddPolled(channel, channel->socket_.get(), EPOLLRDHUP);
    if (!source.ok()) return channel->Refuse(source.status());
    channel->source_ = *source;
    channel->handler_->OnOpen(channel);
    // An edge-triggered source does not report what arrived earlier.
    channel->OnReady(EPOLLIN);
  });
  return channel;
}

bool ShmControlChannel::SendAhead(size_t body, absl::Span<const int> descriptors) {
  // Check for room first: descriptors that were sent cannot be recalled.
  if (!writer_.HasRoom(body)) return false;
  writer_.HintDescriptors();
  is_socket_full_ = !SendDescriptors(socket_.get(), descriptors).ok();
  return !is_socket_full_;
}

absl::Status ShmControlChannel::Send(uint16_t type, absl::Span<const absl::string_view> parts,
                                     absl::Span<const int> descriptors) {
  absl::Status status = Put(type, parts, descriptors);
  if (status.ok()) Kick();
  return status;
}

absl::Status ShmControlChannel::Append(uint16_t type, absl::Span<const absl::string_view> parts) {
  return Put(type, parts, {});
}

absl::Status ShmControlChannel::Put(uint16_t type, absl::Span<const absl::string_view> parts,
                                    absl::Span<const int> descriptors) {
  size_t body = 0;
  for (const absl::string_view part : parts) body += part.size();
  if (body > kMaxControlBody) return ControlBodyIsTooLarge(body, kMaxControlBody);
  {
    SpinLockHolder lock(&send_lock_);
    if (!closed_.ok()) return closed_;
    if (queue_.empty() && (descriptors.empty() || SendAhead(body, descriptors)) &&
        writer_.Write(type, static_cast<uint8_t>(descriptors.size()), parts)) {
      return absl::OkStatus();
    }
  }
  return Queue(type, parts, descriptors);
}

absl::Status ShmControlChannel::Queue(uint16_t type, absl::Span<const absl::string_view> parts,
                                      absl::Span<const int> descriptors) {
  // Frames before this one may have been appended only, and the peer makes room when it reads them.
  Kick();
  Queued queued = {.type = type};
  size_t body = 0;
  for (const absl::string_view part : parts) body += part.size();
  queued.body.reserve(body);
  for (const absl::string_view part : parts) absl::StrAppend(&queued.body, part);
  for (const int fd : descriptors) {
    FERRY_ASSIGN_OR_RETURN(UniqueFd copy, DuplicateDescriptor(fd));
    queued.descriptors.push_back(std::move(copy));
  }
  {
    SpinLockHolder lock(&send_lock_);
    if (!closed_.ok()) return closed_;
    if (queued_bytes_ + queued.body.size() > max_queued_bytes_) {
      return ControlQueueIsFull(peer_, queued_bytes_, queue_.size(), max_queued_bytes_);
    }
    queued_bytes_ += queued.body.size();
    queue_.push_back(std::move(queued));
    has_queue_.store(true, std::memory_order_release);
    writer_.RequestRoom();
  }
  // The reader may have made room in between and not have seen the request; then this side must
  // retry.
  loop_.doorbell().Ring();
  return absl::OkStatus();
}

bool ShmControlChannel::is_all_read() const {
  SpinLockHolder lock(&send_lock_);
  return queue_.empty() && writer_.IsAllRead();
}

bool ShmControlChannel::WriteQueued(const Queued& frame) {
  std::vector<int> descriptors;
  for (const UniqueFd& fd : frame.descriptors) descriptors.push_back(fd.get());
  return (descriptors.empty() || SendAhead(frame.body.size(), descriptors)) &&
         writer_.Write(frame.type, static_cast<uint8_t>(descriptors.size()), {frame.body});
}

bool ShmControlChannel::FlushQueue() {
  bool did_something = false;
  SpinLockHolder lock(&send_lock_);
  is_socket_full_ = false;
  while (!queue_.empty()) {
    const Queued& front = queue_.front();
    if (!WriteQueued(front)) {
      writer_.RequestRoom();
      if (!WriteQueued(front)) break;
    }
    queued_bytes_ -= front.body.size();
    queue_.pop_front();
    did_something = true;
  }
  has_queue_.store(!queue_.empty(), std::memory_order_relaxed);
  if (did_something) memory_.peer_bell.Ring();
  return did_something;
}

absl::StatusOr<std::vector<UniqueFd>> ShmControlChannel::TakeDescriptors(size_t count) {
  std::vector<UniqueFd> taken;
  while (taken.size() < count) {
    if (arrived_.empty()) {
      // Descriptors are sent before their frame, so they have arrived.
      FERRY_ASSIGN_OR_RETURN(const bool is_open,
                             ReceiveDescriptors(socket_.get(), arrived_, count));
      (void)is_open;
      if (arrived_.empty()) {
        return absl::InvalidArgumentError("a frame came without its descriptors");
      }
    }
    taken.push_back(std::move(arrived_.front()));
    arrived_.pop_front();
  }
  return taken;
}

void ShmControlChannel::ReceiveHintedDescriptors() {
  const size_t before = arrived_.size();
  // More descriptors than any frame has, and still no frame: the peer is malicious.
  if (before >= kMaxDescriptors) return;
  for (int i = 0; i < kLooksForDescriptors && !reader_.HasFrame(); ++i) {
    const absl::StatusOr<bool> is_open = ReceiveDescriptors(socket_.get(), arrived_, before + 1);
    if (!is_open.ok()) Close(is_open.status());
    // The kernel reports hang-up separately.
    if (!is_open.ok() || !*is_open || arrived_.size() > before) return;
  }
}

bool ShmControlChannel::HasWork() {
  if (is_finished_) return false;
  return reader_.HasFrame() || is_closing_.load(std::memory_order_acquire) ||
         (has_queue_.load(std::memory_order_acquire) && CanFlush());
}

bool ShmControlChannel::CanFlush() {
  SpinLockHolder lock(&send_lock_);
  return !queue_.empty() && !is_socket_full_ && writer_.HasRoom(queue_.front().body.size());
}

void ShmControlChannel::BeforeSleep() {
  if (!is_finished_ && !is_all_read()) memory_.peer_bell.Notify();
}

absl::Status ShmControlChannel::DeliverFrame(const RingFrame& frame) {
  if (frame.descriptors == 0) return handler_->OnFrame(frame.type, frame.body, {});
  FERRY_ASSIGN_OR_RETURN(std::vector<UniqueFd> descriptors, TakeDescriptors(frame.descriptors));
  return handler_->OnFrame(frame.type, frame.body, absl::MakeSpan(descriptors));
}

absl::Status ShmControlChannel::DeliverFrames(size_t& count) {
  absl::InlinedVector<ControlFrame, kFramesAtOnce> frames;
  std::optional<RingFrame> with_descriptors;
  absl::Status status;
  size_t bytes = 0;
  do {
    const absl::StatusOr<RingFrame> frame = reader_.Read();
    if (!frame.ok()) {
      status = frame.status();
      break;
    }
    ++count;
    if (frame->descriptors != 0) {
      with_descriptors = *frame;
      break;
    }
    frames.push_back({.type = frame->type, .body = frame->body});
    bytes += frame->body.size();
  } while (count < kFramesAtOnce && bytes < kMaxUnreleased && reader_.HasFrame());
  if (!frames.empty()) FERRY_RETURN_IF_ERROR(handler_->OnFrames(frames));
  if (with_descriptors.has_value()) FERRY_RETURN_IF_ERROR(DeliverFrame(*with_descriptors));
  return status;
}

bool ShmControlChannel::Poll() {
  if (is_finished_) return false;
  if (reader_.TakeHint()) ReceiveHintedDescriptors();
  size_t count = 0;
  while (count < kFramesAtOnce && reader_.HasFrame()) {
    absl::Status status;
    if (count == 0 && !looks_ahead_) {
      // Without a look at the line of the next frame, which takes as long as a frame's copy.
      const absl::StatusOr<RingFrame> frame = reader_.Read();
      status = frame.ok() ? DeliverFrame(*frame) : frame.status();
      ++count;
    } else {
      status = DeliverFrames(count);
    }
    if (!status.ok()) {
      Close(status);
      break;
    }
    reader_.Release();
  }
  looks_ahead_ = count > 1;
  bool did_something = count > 0;
  if (did_something && reader_.Publish()) memory_.peer_bell.Ring();
  if (has_queue_.load(std::memory_order_acquire)) did_something |= FlushQueue();
  if (is_closing_.load(std::memory_order_acquire)) Finish();
  return did_something;
}

void ShmControlChannel::OnReady(uint32_t events) {
  if (is_finished_) return;
  const absl::StatusOr<bool> is_open = ReceiveDescriptors(socket_.get(), arrived_);
  if (is_open.ok() && *is_open) return;
  // The peer has closed; frames it sent before are still in the ring.
  while (!is_finished_ && !is_closing_.load() && reader_.HasFrame()) Poll();
  Close(is_open.ok() ? PeerHasGone(peer_) : is_open.status());
  if (is_closing_.load(std::memory_order_acquire)) Finish();
}

void ShmControlChannel::Close(const absl::Status& why) {
  {
    SpinLockHolder lock(&send_lock_);
    if (!closed_.ok()) return;
    closed_ = why;
    // Within the lock: a Close that returns because of this one relies on it.
    is_closing_.store(true, std::memory_order_release);
  }
  loop_.Post([self = shared_from_this()] { self->Finish(); });
}

void ShmControlChannel::Refuse(const absl::Status& why) {
  Close(absl::Status(why.code(), absl::StrCat("no control channel to ", ferry::Describe(peer_),
                                              ": ", why.message())));
  Finish();
}

void ShmControlChannel::Finish() {
  if (is_finished_) return;
  is_finished_ = true;
  loop_.Remove(source_, socket_.get());
  shutdown(socket_.get(), SHUT_RDWR);
  absl::Status why;
  std::deque<Queued> dropped;
  {
    SpinLockHolder lock(&send_lock_);
    why = closed_;
    dropped.swap(queue_);
  }
  arrived_.clear();
  std::exchange(handler_, nullptr)->OnClosed(why);
}

}  // namespace ferry
