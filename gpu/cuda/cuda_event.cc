// SPDX-License-Identifier: Apache-2.0
// CudaEvent and ReadyEvent: recording and querying.
#include "gpu/cuda/cuda_event.h"

#include <atomic>
#include <utility>

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

// The handle of every thread's own default stream (CU_STREAM_PER_THREAD).
const auto kPerThreadStream = reinterpret_cast<Stream>(uintptr_t{2});

StreamPosition NextPosition(Stream stream) {
  static std::atomic<uint64_t> next_sequence{1};
  if (stream == kPerThreadStream) return {};
  return {stream, next_sequence.fetch_add(1, std::memory_order_relaxed)};
}

}  // namespace

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, Event event)
    : pool_(std::move(pool)), event_(event) {}

CudaEvent::CudaEvent(CudaEvent&& other) noexcept
    : pool_(std::move(other.pool_)), event_(std::exchange(other.event_, nullptr)) {}

CudaEvent& CudaEvent::operator=(CudaEvent&& other) noexcept {
  if (this == &other) return *this;
  if (event_ != nullptr) pool_->Give(event_);
  pool_ = std::move(other.pool_);
  event_ = std::exchange(other.event_, nullptr);
  return *this;
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) pool_->Give(event_);
}

absl::Status CudaEvent::Record(Stream stream) {
  const CudaDevice& device = pool_->device();
  const ScopedCurrent current(device);
  return device.Check(device.table().event_record(event_, stream), "cuEventRecord");
}

absl::StatusOr<bool> CudaEvent::IsDone() const {
  const CudaDevice& device = pool_->device();
  const ScopedCurrent current(device);
  Result result = device.table().event_query(event_);
  // Callers treat an error as a device failure, after which the device writes no memory any more:
  // so retry, rather than conclude that from a single failed query.
  if (result != kSuccess && result != kErrorNotReady) result = device.table().event_query(event_);
  if (result == kErrorNotReady) return false;
  FERRY_RETURN_IF_ERROR(device.Check(result, "cuEventQuery"));
  return true;
}

EventPool::EventPool(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

std::shared_ptr<EventPool> EventPool::Create(std::shared_ptr<CudaDevice> device) {
  return std::shared_ptr<EventPool>(new EventPool(std::move(device)));
}

EventPool::~EventPool() {
  const ScopedCurrent current(*device_);
  for (const Event event : idle_) device_->table().event_destroy(event);
}

absl::StatusOr<CudaEvent> EventPool::Take() {
  {
    absl::MutexLock lock(&mu_);
    if (!idle_.empty()) {
      const Event event = idle_.back();
      idle_.pop_back();
      return CudaEvent(shared_from_this(), event);
    }
  }
  const ScopedCurrent current(*device_);
  Event event = nullptr;
  FERRY_RETURN_IF_ERROR(
      device_->Check(device_->table().event_create(&event, kEventDisableTiming), "cuEventCreate"));
  return CudaEvent(shared_from_this(), event);
}

void EventPool::Give(Event event) {
  absl::MutexLock lock(&mu_);
  idle_.push_back(event);
}

int EventPool::idle_count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(idle_.size());
}

absl::StatusOr<std::shared_ptr<const ReadyEvent>> ReadyEvent::Record(EventPool& pool,
                                                                     Stream stream) {
  FERRY_ASSIGN_OR_RETURN(CudaEvent event, pool.Take());
  return Record(std::move(event), stream);
}

absl::StatusOr<std::shared_ptr<const ReadyEvent>> ReadyEvent::RecordOrWait(EventPool& pool,
                                                                           Stream stream) {
  absl::StatusOr<std::shared_ptr<const ReadyEvent>> recorded = Record(pool, stream);
  if (!recorded.ok()) {
    const ScopedCurrent current(pool.device());
    // If this fails too, the device has failed and writes no more.
    pool.device().table().stream_synchronize(stream);
  }
  return recorded;
}

absl::StatusOr<std::shared_ptr<const ReadyEvent>> ReadyEvent::Record(CudaEvent event,
                                                                     Stream stream) {
  const StreamPosition position = NextPosition(stream);
  FERRY_RETURN_IF_ERROR(event.Record(stream));
  return std::make_shared<const ReadyEvent>(std::move(event), position);
}

absl::Status ReadyEvent::EnqueueWait(const CudaDevice& consumer, Stream stream) const {
  const ScopedCurrent current(consumer);
  return consumer.Check(consumer.table().stream_wait_event(stream, event_.get(), /*flags=*/0),
                        "cuStreamWaitEvent");
}

}  // namespace ferry::cuda
