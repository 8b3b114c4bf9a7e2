// SPDX-License-Identifier: Apache-2.0
// Slots and sequence numbers.
#include "gpu/cuda/interprocess_events.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

absl::Status CheckSupport(const CudaDevice& device) {
  FERRY_RETURN_IF_ERROR(device.api().Has(CudaGroup::kIpc));
  if (device.traits().has_ipc_events) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(device.name(), " has no events between processes"));
}

absl::Status NoRecord(const EventTicket& ticket) {
  return absl::InvalidArgumentError(
      absl::StrCat("record ", ticket.sequence, " of event ", ticket.slot, " is none to wait for"));
}

}  // namespace

InterprocessEventPool::InterprocessEventPool(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)) {}

absl::StatusOr<std::unique_ptr<InterprocessEventPool>> InterprocessEventPool::Create(
    std::shared_ptr<CudaDevice> device, int slot_count) {
  FERRY_RETURN_IF_ERROR(CheckSupport(*device));
  const ScopedCurrent current(*device);
  const CudaTable& table = device->table();
  std::unique_ptr<InterprocessEventPool> pool = absl::WrapUnique(new InterprocessEventPool(device));
  absl::MutexLock lock(&pool->mu_);
  for (int i = 0; i < slot_count; ++i) {
    Event event = nullptr;
    FERRY_RETURN_IF_ERROR(device->Check(
        table.event_create(&event, kEventDisableTiming | kEventInterprocess), "cuEventCreate"));
    pool->slots_.push_back({event});
    IpcEventHandle handle = {};
    FERRY_RETURN_IF_ERROR(
        device->Check(table.ipc_get_event_handle(&handle, event), "cuIpcGetEventHandle"));
    pool->handles_.push_back(handle);
    // Taken from the back: slot 0 first.
    pool->free_.insert(pool->free_.begin(), static_cast<uint32_t>(i));
  }
  return pool;
}

InterprocessEventPool::~InterprocessEventPool() {
  const ScopedCurrent current(*device_);
  absl::MutexLock lock(&mu_);
  for (const Slot& slot : slots_) device_->table().event_destroy(slot.event);
}

absl::StatusOr<EventTicket> InterprocessEventPool::Record(Stream stream) {
  EventTicket ticket;
  Event event = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (free_.empty()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "all ", slots_.size(), " events that ", device_->name(),
          " shares with this peer are in use; the peer has passed none of their waits"));
    }
    ticket.slot = free_.back();
    free_.pop_back();
    Slot& slot = slots_[ticket.slot];
    slot.is_out = true;
    ticket.sequence = ++slot.sequence;
    event = slot.event;
  }
  const ScopedCurrent current(*device_);
  const absl::Status status =
      device_->Check(device_->table().event_record(event, stream), "cuEventRecord");
  if (status.ok()) return ticket;
  const absl::Status released = Release(ticket);
  FERRY_CHECK(released.ok());
  return status;
}

absl::Status InterprocessEventPool::Release(const EventTicket& ticket) {
  absl::MutexLock lock(&mu_);
  if (ticket.slot >= slots_.size() || !slots_[ticket.slot].is_out ||
      slots_[ticket.slot].sequence != ticket.sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("record ", ticket.sequence, " of event ", ticket.slot, " is not out"));
  }
  slots_[ticket.slot].is_out = false;
  free_.push_back(ticket.slot);
  return absl::OkStatus();
}

int InterprocessEventPool::free_count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(free_.size());
}

ImportedEvents::ImportedEvents(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

absl::StatusOr<std::unique_ptr<ImportedEvents>> ImportedEvents::Open(
    std::shared_ptr<CudaDevice> device, absl::Span<const IpcEventHandle> handles) {
  FERRY_RETURN_IF_ERROR(CheckSupport(*device));
  const ScopedCurrent current(*device);
  std::unique_ptr<ImportedEvents> imported = absl::WrapUnique(new ImportedEvents(device));
  for (const IpcEventHandle& handle : handles) {
    Event event = nullptr;
    FERRY_RETURN_IF_ERROR(device->Check(device->table().ipc_open_event_handle(&event, handle),
                                        "cuIpcOpenEventHandle"));
    imported->events_.push_back(event);
  }
  absl::MutexLock lock(&imported->mu_);
  imported->sequences_.resize(handles.size());
  return imported;
}

ImportedEvents::~ImportedEvents() {
  const ScopedCurrent current(*device_);
  for (const Event event : events_) device_->table().event_destroy(event);
}

absl::Status ImportedEvents::EnqueueWait(const EventTicket& ticket, Stream stream) {
  {
    absl::MutexLock lock(&mu_);
    if (!IsNew(ticket)) return NoRecord(ticket);
    sequences_[ticket.slot] = ticket.sequence;
  }
  const ScopedCurrent current(*device_);
  return device_->Check(
      device_->table().stream_wait_event(stream, events_[ticket.slot], /*flags=*/0),
      "cuStreamWaitEvent");
}

absl::StatusOr<bool> ImportedEvents::HasPassed(const EventTicket& ticket) {
  {
    absl::MutexLock lock(&mu_);
    if (!IsNew(ticket)) return NoRecord(ticket);
  }
  const ScopedCurrent current(*device_);
  const Result result = device_->table().event_query(events_[ticket.slot]);
  if (result == kErrorNotReady) return false;
  FERRY_RETURN_IF_ERROR(device_->Check(result, "cuEventQuery"));
  absl::MutexLock lock(&mu_);
  if (!IsNew(ticket)) return NoRecord(ticket);
  sequences_[ticket.slot] = ticket.sequence;
  return true;
}

}  // namespace ferry::cuda
