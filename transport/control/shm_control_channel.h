// SPDX-License-Identifier: Apache-2.0
// ShmControlChannel: a control channel between processes of one host, made of two rings in shared
// memory and a socket for descriptors.
#ifndef FERRY_TRANSPORT_CONTROL_SHM_CONTROL_CHANNEL_H_
#define FERRY_TRANSPORT_CONTROL_SHM_CONTROL_CHANNEL_H_

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/spin_lock.h"
#include "base/unique_fd.h"
#include "net/doorbell.h"
#include "net/event_loop.h"
#include "tensor/memory_segment.h"
#include "transport/control/control_channel.h"
#include "transport/control/shm_ring.h"

namespace ferry {

// Frames go through the ring, at some tens of nanoseconds and a cache miss; the peer is woken only
// if it sleeps. Descriptors go through the socket ahead of their frame. The kernel closes the
// socket when the peer dies.
class ShmControlChannel final : public ControlChannel,
                                public PolledSource,
                                public std::enable_shared_from_this<ShmControlChannel> {
 public:
  struct Memory {
    MemorySegment rings;
    // The peer's doorbell.
    Doorbell peer_bell;
  };

  // Size of a segment for the two rings, in bytes.
  static size_t RingsBytes();

  // `socket`: connected, non-blocking, with an authenticated peer. `is_first`: this side writes the
  // first of the two rings. Starts calling `handler` at once, on `loop`, which must outlive it.
  static std::shared_ptr<ShmControlChannel> Start(EventLoop& loop, PeerId peer, UniqueFd socket,
                                                  Memory memory, bool is_first,
                                                  std::shared_ptr<ControlHandler> handler,
                                                  size_t max_queued_bytes);
  ~ShmControlChannel() override;

  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int> descriptors) override ABSL_LOCKS_EXCLUDED(send_lock_);
  absl::Status Append(uint16_t type, absl::Span<const absl::string_view> parts) override
      ABSL_LOCKS_EXCLUDED(send_lock_);
  void Kick() override { memory_.peer_bell.Ring(); }
  void Close(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(send_lock_);
  const PeerId& peer() const override { return peer_; }
  size_t queued_bytes() const override { return queued_bytes_.load(std::memory_order_relaxed); }
  bool passes_descriptors() const override { return true; }
  bool is_all_read() const override ABSL_LOCKS_EXCLUDED(send_lock_);
  std::string Describe() const override { return "shm"; }

  bool Poll() override;
  bool HasWork() override;
  void BeforeSleep() override;
  void OnReady(uint32_t events) override;

 private:
  // A frame for which the ring had no room.
  struct Queued {
    uint16_t type = 0;
    std::string body;
    std::vector<UniqueFd> descriptors;
  };

  ShmControlChannel(EventLoop& loop, PeerId peer, UniqueFd socket, Memory memory, bool is_first,
                    std::shared_ptr<ControlHandler> handler, size_t max_queued_bytes);

  // Writes the frame into the ring or the queue.
  absl::Status Put(uint16_t type, absl::Span<const absl::string_view> parts,
                   absl::Span<const int> descriptors) ABSL_LOCKS_EXCLUDED(send_lock_);
  // Puts a frame into the queue.
  absl::Status Queue(uint16_t type, absl::Span<const absl::string_view> parts,
                     absl::Span<const int> descriptors) ABSL_LOCKS_EXCLUDED(send_lock_);
  // Sends the descriptors of a frame that is then written. Returns false, and sends none, if there
  // is no room, in the ring for a body of that size or for the descriptors.
  bool SendAhead(size_t body, absl::Span<const int> descriptors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_lock_);
  // Returns false if there is no room.
  bool WriteQueued(const Queued& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_lock_);
  bool FlushQueue() ABSL_LOCKS_EXCLUDED(send_lock_);
  // The peer may have made room after FlushQueue, and have found this side awake.
  bool CanFlush() ABSL_LOCKS_EXCLUDED(send_lock_);
  absl::StatusOr<std::vector<UniqueFd>> TakeDescriptors(size_t count);
  absl::Status DeliverFrame(const RingFrame& frame);
  // Delivers frames that have arrived, at most up to and with the first one that has descriptors,
  // and adds their number to `count`. The caller releases them. REQUIRES: there is one.
  //   Errors: INVALID_ARGUMENT for a malformed frame, behind those before it; the handler's.
  absl::Status DeliverFrames(size_t& count);
  // The peer is sending descriptors: receive them as they arrive, not only with their frame.
  void ReceiveHintedDescriptors();
  // Closes a channel that cannot be opened.
  void Refuse(const absl::Status& why);
  void Finish();

  // Constant after construction.
  EventLoop& loop_;
  const PeerId peer_;
  const UniqueFd socket_;
  Memory memory_;
  const size_t max_queued_bytes_;
  EventLoop::SourceId source_ = 0;

  // Loop thread only.
  RingReader reader_;
  std::shared_ptr<ControlHandler> handler_;
  std::deque<UniqueFd> arrived_;
  // The last pass has found several frames.
  bool looks_ahead_ = false;
  bool is_finished_ = false;

  mutable SpinLock send_lock_;
  RingWriter writer_ ABSL_GUARDED_BY(send_lock_);
  std::deque<Queued> queue_ ABSL_GUARDED_BY(send_lock_);
  // Since the last try the socket has had no room for descriptors.
  bool is_socket_full_ ABSL_GUARDED_BY(send_lock_) = false;
  // Written under send_lock_.
  std::atomic<size_t> queued_bytes_{0};
  absl::Status closed_ ABSL_GUARDED_BY(send_lock_);
  // Copies, readable without the lock.
  std::atomic<bool> has_queue_{false};
  std::atomic<bool> is_closing_{false};
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_SHM_CONTROL_CHANNEL_H_
