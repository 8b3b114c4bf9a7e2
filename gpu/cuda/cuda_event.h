// SPDX-License-Identifier: Apache-2.0
// CudaEvent: events that are taken from a pool, and ReadyEvent, which marks when bytes are there.
#ifndef FERRY_GPU_CUDA_CUDA_EVENT_H_
#define FERRY_GPU_CUDA_CUDA_EVENT_H_

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

// One event, the holder's alone until it goes back into its pool. Move-only.
class CudaEvent final {
 public:
  CudaEvent() = default;
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&& other) noexcept;

  Event get() const { return event_; }
  bool is_valid() const { return event_ != nullptr; }

  // Marks what has been enqueued on `stream` so far. REQUIRES: is_valid(); a stream of the pool's
  // device.
  absl::Status Record(Stream stream);
  // Whether all that is done. Does not block. REQUIRES: it has been recorded by this holder.
  //   Errors: INTERNAL with what went wrong on the device, now or earlier.
  absl::StatusOr<bool> IsDone() const;

  EventPool& pool() const { return *pool_; }

 private:
  friend class EventPool;
  CudaEvent(std::shared_ptr<EventPool> pool, Event event);

  std::shared_ptr<EventPool> pool_;
  Event event_ = nullptr;
};

// Events of one device, without timing, used again and again: making one costs microseconds and
// takes a lock of the driver's. Thread-safe.
class EventPool final : public std::enable_shared_from_this<EventPool> {
 public:
  static std::shared_ptr<EventPool> Create(std::shared_ptr<CudaDevice> device);
  ~EventPool();

  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  //   Errors: what cuEventCreate says.
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

// When the bytes of a tensor are there: recorded once, behind what writes them. Consumers' streams
// wait for it on the device; no thread waits. Thread-safe, shared by those who wait.
class ReadyEvent final {
 public:
  // Behind what has been enqueued on `stream` so far, a stream of the pool's device.
  static absl::StatusOr<std::shared_ptr<const ReadyEvent>> Record(EventPool& pool, Stream stream);
  // The same behind a copy or a kernel. When there can be no event, it waits for the stream, so
  // that whatever it returns, what the copy uses can be let go of.
  static absl::StatusOr<std::shared_ptr<const ReadyEvent>> RecordOrWait(EventPool& pool,
                                                                        Stream stream);

  explicit ReadyEvent(CudaEvent event) : event_(std::move(event)) {}

  // What is enqueued on `stream` from now on runs after the bytes are there.
  //   consumer: the stream's device, which need not be this event's.
  absl::Status MakeWait(const CudaDevice& consumer, Stream stream) const;
  absl::StatusOr<bool> IsDone() const { return event_.IsDone(); }

 private:
  const CudaEvent event_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_CUDA_EVENT_H_
