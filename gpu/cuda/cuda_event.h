// SPDX-License-Identifier: Apache-2.0
// CudaEvent: pooled events; ReadyEvent: marks the completion of a tensor's bytes.
#ifndef FERRY_GPU_CUDA_CUDA_EVENT_H_
#define FERRY_GPU_CUDA_CUDA_EVENT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/cuda_device.h"

namespace ferry::cuda {

class EventPool;

// One event, owned exclusively until it returns to its pool. Move-only.
class CudaEvent final {
 public:
  CudaEvent() = default;
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&& other) noexcept;

  Event get() const { return event_; }
  bool is_valid() const { return event_ != nullptr; }

  // Records the work enqueued on `stream` so far. REQUIRES: is_valid(); a stream of the pool's
  // device.
  absl::Status Record(Stream stream);
  // Returns whether the recorded work has completed. Does not block. REQUIRES: recorded by this
  // holder.
  //   Errors: INTERNAL with the device's error, now or earlier.
  absl::StatusOr<bool> IsDone() const;

  EventPool& pool() const { return *pool_; }

 private:
  friend class EventPool;
  CudaEvent(std::shared_ptr<EventPool> pool, Event event);

  std::shared_ptr<EventPool> pool_;
  Event event_ = nullptr;
};

// Reusable events of one device, without timing: creating one costs microseconds and takes a lock
// of the driver's. Thread-safe.
class EventPool final : public std::enable_shared_from_this<EventPool> {
 public:
  static std::shared_ptr<EventPool> Create(std::shared_ptr<CudaDevice> device);
  ~EventPool();

  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  //   Errors: as cuEventCreate.
  absl::StatusOr<CudaEvent> Take() ABSL_LOCKS_EXCLUDED(mu_);

  CudaDevice& device() const { return *device_; }
  int idle_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class CudaEvent;
  explicit EventPool(std::shared_ptr<CudaDevice> device);
  void Give(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<CudaDevice> device_;
  mutable absl::Mutex mu_;
  std::vector<Event> idle_ ABSL_GUARDED_BY(mu_);
};

// Where an event was recorded. Events of one stream complete in the order of their sequence
// numbers, with exceptions: two threads that record on it at a time may have their numbers in the
// other order, and a destroyed stream's handle may be reused while its work still runs.
//   sequence: unique in the process; 0: unknown, as for the per-thread default stream.
struct StreamPosition {
  Stream stream = nullptr;
  uint64_t sequence = 0;
};

// Marks when the bytes of a tensor are complete: recorded once, behind the work that writes them.
// By default the device's executor polls it; with GpusOptions::waits_on_device a consumer's stream
// waits for it. Thread-safe, shared by its waiters.
class ReadyEvent final {
 public:
  // Records the work enqueued on `stream` so far, a stream of the pool's device.
  static absl::StatusOr<std::shared_ptr<const ReadyEvent>> Record(EventPool& pool, Stream stream);
  // The same with an event of that pool. Fails only if the device has failed.
  static absl::StatusOr<std::shared_ptr<const ReadyEvent>> Record(CudaEvent event, Stream stream);
  // The same behind a copy or a kernel. If no event can be recorded, synchronizes the stream, so
  // that in every case the memory that the copy uses can be released afterwards.
  static absl::StatusOr<std::shared_ptr<const ReadyEvent>> RecordOrWait(EventPool& pool,
                                                                        Stream stream);

  ReadyEvent(CudaEvent event, StreamPosition position)
      : event_(std::move(event)), position_(position) {}

  // Work that is enqueued on `stream` from now on runs once the bytes are complete.
  //   consumer: the stream's device, which need not be this event's.
  absl::Status EnqueueWait(const CudaDevice& consumer, Stream stream) const;
  absl::StatusOr<bool> IsDone() const { return event_.IsDone(); }
  const StreamPosition& position() const { return position_; }

 private:
  const CudaEvent event_;
  const StreamPosition position_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_CUDA_EVENT_H_
