// SPDX-License-Identifier: Apache-2.0
// ShmSender, ShmReceiver: the two endpoints of a shared memory transfer, and their messages.
#ifndef FERRY_TRANSPORT_SHM_SHM_ENDPOINTS_H_
#define FERRY_TRANSPORT_SHM_SHM_ENDPOINTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "base/spin_lock.h"
#include "tensor/copy.h"
#include "tensor/host_arena.h"
#include "transport/transport.h"

namespace ferry {

// The transfer descriptor of an arena's tensor. Sent as it is in memory, like all little-endian
// fields of Ferry's messages.
struct ShmDescriptor {
  uint32_t segment = 0;
  uint32_t generation = 0;
  // Offset of the tensor's first element in the segment.
  uint64_t offset = 0;

  absl::string_view bytes() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
};
static_assert(sizeof(ShmDescriptor) == 16);

// Sent with the segment's file descriptor, before the first transfer descriptor that refers to it;
// and once more, with no bytes and no file descriptor, when the producer has freed the segment: no
// later transfer descriptor refers to it.
struct ShmSegmentNotice {
  uint32_t segment = 0;
  uint64_t bytes = 0;
};

std::string EncodeShmSegmentNotice(const ShmSegmentNotice& notice);
//   Errors: INVALID_ARGUMENT, here and below.
absl::StatusOr<ShmSegmentNotice> DecodeShmSegmentNotice(absl::string_view body);
absl::StatusOr<ShmDescriptor> DecodeShmDescriptor(absl::string_view body);

class ShmSender final : public TransportSender, public std::enable_shared_from_this<ShmSender> {
 public:
  ShmSender(TransportEnvironment environment) : environment_(std::move(environment)) {}

  void SetControlChannel(ControlMessageSender channel) override {
    control_channel_ = std::move(channel);
  }
  void SetHintChannel(ControlMessageSender channel) override ABSL_LOCKS_EXCLUDED(announce_mu_);
  bool TryExposeAndSend(uint64_t id, const Tensor& tensor, const DescriptorFrame& frame) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
              ExposeCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Release(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  // The arena has added the segment that contains `at`. The peer maps it while it is being
  // filled, so that its first tensor is transferred as fast as any other.
  void OnNewSegment(const ArenaOffset& at) ABSL_LOCKS_EXCLUDED(announce_mu_, mu_);
  // The arena has freed a segment: tells the peer, if it has mapped it, to unmap it.
  void Retire(uint32_t segment) ABSL_LOCKS_EXCLUDED(announce_mu_, mu_);

 private:
  bool IsInArena(const Tensor& tensor) const {
    return tensor.buffer() != nullptr && tensor.buffer()->arena() == environment_.arena.get();
  }
  // Exports `tensor`, which is in the arena.
  absl::StatusOr<ShmDescriptor> ExposeInArena(uint64_t id, const Tensor& tensor)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Announces the segment of `at` to the peer, unless done before.
  absl::Status AnnounceSegment(const ArenaOffset& at, const ControlMessageSender& channel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(announce_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  void AnnounceRetired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(announce_mu_);

  // Constant once the control channel is open.
  const TransportEnvironment environment_;
  ControlMessageSender control_channel_;
  // Held while a segment is announced. Lock order: this, then mu_.
  absl::Mutex announce_mu_;
  ControlMessageSender hint_channel_ ABSL_GUARDED_BY(announce_mu_);
  // Freed segments that the peer could not be told about yet.
  std::vector<uint32_t> retired_ ABSL_GUARDED_BY(announce_mu_);
  SpinLock mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Buffer>> exposed_ ABSL_GUARDED_BY(mu_);
  // Segments announced to the peer.
  absl::flat_hash_set<uint32_t> known_ ABSL_GUARDED_BY(mu_);
};

class ShmReceiver final : public TransportReceiver,
                          public std::enable_shared_from_this<ShmReceiver> {
 public:
  ShmReceiver(TransportEnvironment environment, ReleaseCallback release)
      : environment_(std::move(environment)), release_(std::move(release)) {}

  // Without the descriptor, too: a segment that cannot be mapped now may never be needed.
  absl::Status OnControlMessage(absl::string_view body, absl::Span<UniqueFd> descriptors) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
             absl::Span<UniqueFd> descriptors, const Tensor& destination,
             FetchCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
               absl::Span<UniqueFd> descriptors) override ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class View;
  using Segment = std::shared_ptr<const MemorySegment>;

  absl::Status Keep(uint32_t id, absl::StatusOr<Segment> segment) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<const char*> Locate(const TensorHeader& header, absl::string_view body,
                                     Segment& segment) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  const ReleaseCallback release_;
  SpinLock mu_;
  // Mapped segments, or why one could not be mapped.
  absl::flat_hash_map<uint32_t, absl::StatusOr<Segment>> segments_ ABSL_GUARDED_BY(mu_);
  // Pending copies.
  absl::flat_hash_map<uint64_t, std::shared_ptr<CopyControl>> copies_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_SHM_SHM_ENDPOINTS_H_
