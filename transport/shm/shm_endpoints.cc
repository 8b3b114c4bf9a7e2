// SPDX-License-Identifier: Apache-2.0
// Exports memory of the arena, and maps it on the other side; the messages about it.
#include "transport/shm/shm_endpoints.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/byte_reader.h"
#include "base/status_macros.h"
#include "net/event_loop.h"
#include "tensor/check_values.h"
#include "transport/control/descriptors.h"

namespace ferry {
namespace {

// Smaller copies finish before a pool thread would be awake.
constexpr size_t kCopyHereBytes = 256 * 1024;

}  // namespace

absl::StatusOr<ShmDescriptor> DecodeShmDescriptor(absl::string_view body) {
  ByteReader reader(body);
  ShmDescriptor descriptor;
  descriptor.segment = reader.Get<uint32_t>();
  descriptor.generation = reader.Get<uint32_t>();
  descriptor.offset = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) {
    return absl::InvalidArgumentError("a shm transfer descriptor that is not 16 bytes long");
  }
  return descriptor;
}

std::string EncodeShmSegmentNotice(const ShmSegmentNotice& notice) {
  char room[12];
  ByteWriter writer(room, sizeof(room));
  writer.Put(notice.segment);
  writer.Put(notice.bytes);
  return std::string(writer.view());
}

absl::StatusOr<ShmSegmentNotice> DecodeShmSegmentNotice(absl::string_view body) {
  ByteReader reader(body);
  ShmSegmentNotice notice;
  notice.segment = reader.Get<uint32_t>();
  notice.bytes = reader.Get<uint64_t>();
  if (reader.is_short() || !reader.rest().empty()) {
    return absl::InvalidArgumentError("a shm segment notice that is not 12 bytes long");
  }
  return notice;
}

void ShmSender::SetHintChannel(ControlMessageSender channel) {
  absl::MutexLock lock(&announce_mu_);
  hint_channel_ = std::move(channel);
}

void ShmSender::OnNewSegment(const ArenaOffset& at) {
  absl::MutexLock lock(&announce_mu_);
  // Best effort: announced again when a tensor in it is exported.
  if (hint_channel_ != nullptr) AnnounceSegment(at, hint_channel_).IgnoreError();
}

absl::Status ShmSender::AnnounceSegment(const ArenaOffset& at,
                                        const ControlMessageSender& channel) {
  {
    SpinLockHolder known_lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    if (known_.contains(at.segment)) return absl::OkStatus();
  }
  AnnounceRetired();
  const MemorySegment& memory = environment_.arena->memory(at);
  const int fd = memory.fd();
  FERRY_RETURN_IF_ERROR(channel(EncodeShmSegmentNotice({at.segment, memory.bytes()}), {&fd, 1}));
  SpinLockHolder known_lock(&mu_);
  known_.insert(at.segment);
  return absl::OkStatus();
}

void ShmSender::AnnounceRetired() {
  // If the control channel rejects it now, it is retried later; if it has closed, the peer has
  // unmapped everything.
  while (!retired_.empty() &&
         control_channel_(EncodeShmSegmentNotice({.segment = retired_.back()}), {}).ok()) {
    retired_.pop_back();
  }
}

void ShmSender::Retire(uint32_t segment) {
  absl::MutexLock lock(&announce_mu_);
  {
    SpinLockHolder known_lock(&mu_);
    if (known_.erase(segment) == 0 || !aborted_.ok()) return;
  }
  retired_.push_back(segment);
  AnnounceRetired();
}

absl::StatusOr<ShmDescriptor> ShmSender::ExposeInArena(uint64_t id, const Tensor& tensor) {
  const std::shared_ptr<Buffer>& buffer = tensor.buffer();
  const ArenaOffset at = buffer->arena_offset();
  bool is_known = false;
  {
    SpinLockHolder lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    exposed_.emplace(id, buffer);
    is_known = known_.contains(at.segment);
  }
  if (!is_known) {
    // Other threads may export tensors of the same segment: their transfer descriptors must not
    // overtake the announcement.
    absl::MutexLock lock(&announce_mu_);
    if (absl::Status status = AnnounceSegment(at, control_channel_); !status.ok()) {
      Release(id);
      return status;
    }
  }
  return ShmDescriptor{.segment = at.segment,
                       .generation = at.generation,
                       .offset = at.offset + tensor.offset_bytes()};
}

bool ShmSender::TryExposeAndSend(uint64_t id, const Tensor& tensor, const DescriptorFrame& frame) {
  if (!IsInArena(tensor)) return false;
  const absl::StatusOr<ShmDescriptor> descriptor = ExposeInArena(id, tensor);
  if (!descriptor.ok()) return false;
  ControlChannel& channel = *frame.channel;
  const absl::Status sent = channel.Send(frame.type, {frame.head, descriptor->bytes()});
  if (!sent.ok()) channel.Close(sent);
  return true;
}

void ShmSender::Expose(uint64_t id, const Tensor& tensor, const TensorLocation&,
                       ExposeCallback done) {
  // `exposed` is in the arena.
  const auto expose_copy = [self = shared_from_this(), id](const Tensor& exposed,
                                                           ExposeCallback done) {
    const absl::StatusOr<ShmDescriptor> descriptor = self->ExposeInArena(id, exposed);
    if (!descriptor.ok()) return std::move(done)(descriptor.status());
    std::move(done)(TransferDescriptor{.body = std::string(descriptor->bytes())});
  };
  if (IsInArena(tensor)) return expose_copy(tensor, std::move(done));
  absl::StatusOr<std::shared_ptr<Buffer>> copy = environment_.arena->Allocate(tensor.bytes());
  if (!copy.ok()) return std::move(done)(copy.status());
  Tensor copied = *Tensor::Create(tensor.dtype(), tensor.shape(), *copy);
  const void* const from = tensor.data();
  void* const to = copied.mutable_data();
  const size_t bytes = tensor.bytes();
  if (bytes <= kCopyHereBytes) {
    CopyBytes(to, from, bytes);
    return expose_copy(copied, std::move(done));
  }
  // `tensor` keeps its buffer until then.
  environment_.copier->CopyAsync(to, from, bytes,
                                 [expose_copy, tensor, copied, done = std::move(done)]() mutable {
                                   expose_copy(copied, std::move(done));
                                 });
}

void ShmSender::Release(uint64_t id) {
  std::shared_ptr<Buffer> released;
  SpinLockHolder lock(&mu_);
  const auto found = exposed_.find(id);
  if (found == exposed_.end()) return;
  released = std::move(found->second);
  exposed_.erase(found);
  // `released` is destroyed after the lock.
}

void ShmSender::Abort(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, std::shared_ptr<Buffer>> dropped;
  {
    SpinLockHolder lock(&mu_);
    aborted_ = why;
    dropped.swap(exposed_);
  }
}

// A part of a peer's segment. Notifies the peer when destroyed.
class ShmReceiver::View final : public Buffer {
 public:
  View(const char* data, size_t bytes, Segment segment, std::shared_ptr<ShmReceiver> receiver,
       uint64_t id)
      : Buffer(const_cast<char*>(data), bytes),
        segment_(std::move(segment)),
        receiver_(std::move(receiver)),
        id_(id) {}
  ~View() override { receiver_->release_(id_); }

 private:
  const Segment segment_;
  const std::shared_ptr<ShmReceiver> receiver_;
  const uint64_t id_;
};

absl::Status ShmReceiver::OnControlMessage(absl::string_view body,
                                           absl::Span<UniqueFd> descriptors) {
  FERRY_ASSIGN_OR_RETURN(const ShmSegmentNotice notice, DecodeShmSegmentNotice(body));
  if (notice.bytes == 0) {
    absl::StatusOr<Segment> retired;
    SpinLockHolder lock(&mu_);
    const auto found = segments_.find(notice.segment);
    if (found == segments_.end() || !descriptors.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the end of segment ", notice.segment, ", which was not announced"));
    }
    retired = std::move(found->second);
    segments_.erase(found);
    // Unmapped when the lock is released, or with its last view.
    return absl::OkStatus();
  }
  if (descriptors.size() != 1) {
    return absl::InvalidArgumentError("a new segment without its descriptor");
  }
  if (absl::Status lost = CheckDescriptor(descriptors[0]); !lost.ok()) {
    return Keep(notice.segment, std::move(lost));
  }
  absl::StatusOr<MemorySegment> mapped =
      MemorySegment::MapPeer(std::move(descriptors[0]), notice.bytes, false);
  if (mapped.ok()) {
    return Keep(notice.segment, std::make_shared<const MemorySegment>(*std::move(mapped)));
  }
  if (!absl::IsResourceExhausted(mapped.status())) return mapped.status();
  return Keep(notice.segment, mapped.status());
}

absl::Status ShmReceiver::Keep(uint32_t id, absl::StatusOr<Segment> segment) {
  SpinLockHolder lock(&mu_);
  if (segments_.emplace(id, std::move(segment)).second) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("segment ", id, " for a second time"));
}

absl::StatusOr<const char*> ShmReceiver::Locate(const TensorHeader& header, absl::string_view body,
                                                Segment& segment) {
  FERRY_ASSIGN_OR_RETURN(const ShmDescriptor descriptor, DecodeShmDescriptor(body));
  absl::Status why_not;
  {
    SpinLockHolder lock(&mu_);
    const auto found = segments_.find(descriptor.segment);
    if (found != segments_.end() && found->second.ok()) segment = *found->second;
    if (found != segments_.end()) why_not = found->second.status();
  }
  // On the next control channel it is announced again.
  if (!why_not.ok()) return absl::UnavailableError(why_not.message());
  if (segment == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", descriptor.segment, " was never announced"));
  }
  if (descriptor.offset > segment->bytes() || header.bytes > segment->bytes() - descriptor.offset) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of ", header.bytes, " bytes at ",
                                                   descriptor.offset, " in a segment of ",
                                                   segment->bytes()));
  }
  if (descriptor.offset % ElementBytes(header.dtype) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements at the misaligned offset ", descriptor.offset));
  }
  return static_cast<const char*>(segment->base()) + descriptor.offset;
}

void ShmReceiver::Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
                        absl::Span<UniqueFd> descriptors, const Tensor& destination,
                        FetchCallback done) {
  Segment segment;
  const absl::StatusOr<const char*> from = Locate(header, body, segment);
  if (!from.ok()) return std::move(done)(from.status(), false);
  if (!destination.is_valid()) {
    auto view =
        std::make_shared<View>(*from, header.bytes, std::move(segment), shared_from_this(), id);
    return std::move(done)(Tensor::Create(header.dtype, header.shape, std::move(view)), true);
  }
  Tensor into = destination;
  void* const to = into.mutable_data();
  auto control = std::make_shared<CopyControl>();
  if (HasIllegalBits(header.dtype)) control->CheckBooleans();
  {
    SpinLockHolder lock(&mu_);
    copies_.emplace(id, control);
  }
  auto finish = [self = shared_from_this(), id, into = std::move(into),
                 segment = std::move(segment), control, done = std::move(done)]() mutable {
    {
      SpinLockHolder lock(&self->mu_);
      self->copies_.erase(id);
    }
    std::move(done)(std::move(into), {/*later=*/false, control->AreBooleans()});
  };
  EventLoop& loop = *environment_.loop;
  if (header.bytes <= kCopyHereBytes || !loop.IsOnLoop() || loop.IsLedByCaller()) {
    // The thread waiting for it may as well help.
    environment_.copier->Copy(to, *from, header.bytes, std::move(control));
    return finish();
  }
  environment_.copier->CopyAsync(to, *from, header.bytes, std::move(finish), std::move(control));
}

void ShmReceiver::Cancel(uint64_t id) {
  std::shared_ptr<CopyControl> control;
  {
    SpinLockHolder lock(&mu_);
    const auto found = copies_.find(id);
    if (found == copies_.end()) return;
    control = found->second;
  }
  control->Cancel();
}

// The caller releases its memory.
void ShmReceiver::Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
                          absl::Span<UniqueFd> descriptors) {}

void ShmReceiver::Abort(const absl::Status& why) {
  absl::flat_hash_map<uint32_t, absl::StatusOr<Segment>> dropped;
  std::vector<std::shared_ptr<CopyControl>> controls;
  {
    SpinLockHolder lock(&mu_);
    dropped.swap(segments_);
    for (const auto& [id, control] : copies_) controls.push_back(control);
  }
  // The waiting callers are about to be notified, and may reuse their buffers.
  for (const auto& control : controls) control->Cancel();
}

}  // namespace ferry
