// SPDX-License-Identifier: Apache-2.0
// Interprocess events, recorded by one process and waited for by another: exported once, in slots.
#ifndef FERRY_GPU_CUDA_INTERPROCESS_EVENTS_H_
#define FERRY_GPU_CUDA_INTERPROCESS_EVENTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "gpu/cuda/cuda_device.h"

namespace ferry::cuda {

// One record of one slot; sent in the message that makes the peer wait. A value.
struct EventTicket {
  uint32_t slot = 0;
  uint64_t sequence = 0;  // of the slot, from 1

  bool operator==(const EventTicket&) const = default;
};

// The recording side, one for each peer, created at the handshake: `handles()` are sent to the peer
// once, and from then on only tickets. The peer must have closed its side, or have died, before
// this is destroyed. Thread-safe.
class InterprocessEventPool final {
 public:
  //   Errors: FAILED_PRECONDITION if the device has no such events; INTERNAL.
  static absl::StatusOr<std::unique_ptr<InterprocessEventPool>> Create(
      std::shared_ptr<CudaDevice> device, int slot_count);
  ~InterprocessEventPool();

  InterprocessEventPool(const InterprocessEventPool&) = delete;
  InterprocessEventPool& operator=(const InterprocessEventPool&) = delete;

  const std::vector<IpcEventHandle>& handles() const { return handles_; }

  // Records the work enqueued on `stream` so far, in a slot without waiters. The ticket may be sent
  // only after this has returned: a wait for an event that is not recorded yet returns at once.
  //   Errors: RESOURCE_EXHAUSTED when every slot is in use; INTERNAL.
  absl::StatusOr<EventTicket> Record(Stream stream) ABSL_LOCKS_EXCLUDED(mu_);

  // The peer's stream has passed its wait, so the slot may be recorded again.
  //   Errors: INVALID_ARGUMENT for a ticket that is not outstanding: the peer violates the
  //   protocol.
  absl::Status Release(const EventTicket& ticket) ABSL_LOCKS_EXCLUDED(mu_);

  int free_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Slot {
    Event event = nullptr;
    uint64_t sequence = 0;
    bool is_out = false;
  };

  explicit InterprocessEventPool(std::shared_ptr<CudaDevice> device);

  const std::shared_ptr<CudaDevice> device_;
  std::vector<IpcEventHandle> handles_;
  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mu_);
};

// The waiting side. Thread-safe.
class ImportedEvents final {
 public:
  //   device: the device of the streams that will wait.
  //   Errors: FAILED_PRECONDITION if this process created the handles or the driver has no
  //   interprocess events; INTERNAL.
  static absl::StatusOr<std::unique_ptr<ImportedEvents>> Open(
      std::shared_ptr<CudaDevice> device, absl::Span<const IpcEventHandle> handles);
  ~ImportedEvents();

  ImportedEvents(const ImportedEvents&) = delete;
  ImportedEvents& operator=(const ImportedEvents&) = delete;

  // Work that is enqueued on `stream` from now on runs after the ticket's record. Each ticket may
  // be used once.
  //   Errors: INVALID_ARGUMENT for a slot that does not exist, or a record older than one that was
  //   waited for; INTERNAL.
  absl::Status EnqueueWait(const EventTicket& ticket, Stream stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether the ticket's record has completed; if so no wait is needed, and the ticket is
  // used up as by EnqueueWait. Does not block.
  //   Errors: as EnqueueWait.
  absl::StatusOr<bool> HasPassed(const EventTicket& ticket) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit ImportedEvents(std::shared_ptr<CudaDevice> device);
  bool IsNew(const EventTicket& ticket) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ticket.slot < sequences_.size() && ticket.sequence > sequences_[ticket.slot];
  }

  const std::shared_ptr<CudaDevice> device_;
  std::vector<Event> events_;
  absl::Mutex mu_;
  std::vector<uint64_t> sequences_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_INTERPROCESS_EVENTS_H_
