// SPDX-License-Identifier: Apache-2.0
// Events between two processes, without Ferry.
#include "benchmarks/gpu/check_events.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/string_view.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry::check {
absl::StatusOr<std::unique_ptr<EventWire>> EventWire::Create(CheckNode& self, CheckGpu& gpu) {
  auto wire = absl::WrapUnique(new EventWire(self, gpu));
  const cuda::ScopedCurrent current(gpu.device());
  const cuda::CudaTable& table = gpu.table();
  absl::Status status = gpu.device().api().Has(cuda::CudaGroup::kIpc);
  cuda::IpcEventHandle handle = {};
  if (status.ok()) {
    status = gpu.Check(
        table.event_create(&wire->own_, cuda::kEventDisableTiming | cuda::kEventInterprocess),
        "cuEventCreate");
  }
  if (status.ok()) {
    status = gpu.Check(table.ipc_get_event_handle(&handle, wire->own_), "cuIpcGetEventHandle");
  }
  FERRY_RETURN_IF_ERROR(self.Say(
      status.ok()
          ? absl::string_view(reinterpret_cast<const char*>(handle.bytes), sizeof(handle.bytes))
          : absl::string_view("no")));
  FERRY_ASSIGN_OR_RETURN(const std::string theirs, self.Hear());
  FERRY_RETURN_IF_ERROR(status);
  if (theirs.size() != sizeof(handle.bytes)) {
    return absl::UnavailableError("the other process has no interprocess event");
  }
  std::memcpy(handle.bytes, theirs.data(), sizeof(handle.bytes));
  status = gpu.Check(table.ipc_open_event_handle(&wire->other_, handle), "cuIpcOpenEventHandle");
  FERRY_RETURN_IF_ERROR(self.Say(status.ok() ? "yes" : "no"));
  FERRY_ASSIGN_OR_RETURN(const std::string they_have, self.Hear());
  FERRY_RETURN_IF_ERROR(status);
  if (they_have != "yes") {
    return absl::UnavailableError("the other process cannot open an event of this one");
  }
  return wire;
}

absl::Status EventWire::Give() {
  FERRY_RETURN_IF_ERROR(
      gpu_.Check(gpu_.table().event_record(own_, gpu_.stream()), "cuEventRecord"));
  self_.page().word[self_.id()].store(turn_, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status EventWire::Take(bool waits) {
  const std::atomic<uint64_t>& word = self_.page().word[1 - self_.id()];
  absl::Time give_up = absl::InfiniteFuture();
  for (uint64_t look = 1; word.load(std::memory_order_acquire) != turn_; ++look) {
    if (look % 4096 != 0) continue;
    if (give_up == absl::InfiniteFuture()) give_up = SteadyClock().Now() + kTimeout;
    if (SteadyClock().Now() > give_up) {
      return absl::DeadlineExceededError("the other node does not answer");
    }
    sched_yield();
  }
  FERRY_RETURN_IF_ERROR(
      gpu_.Check(gpu_.table().stream_wait_event(gpu_.stream(), other_, 0), "cuStreamWaitEvent"));
  return waits ? gpu_.Wait(gpu_.stream()) : absl::OkStatus();
}

absl::StatusOr<absl::Duration> EventWire::Hop(bool waits) {
  const cuda::ScopedCurrent current(gpu_.device());
  ++turn_;
  FERRY_RETURN_IF_ERROR(self_.Meet());
  const absl::Time began = SteadyClock().Now();
  if (self_.id() == 0) {
    FERRY_RETURN_IF_ERROR(Give());
    FERRY_RETURN_IF_ERROR(Take(waits));
  } else {
    FERRY_RETURN_IF_ERROR(Take(waits));
    FERRY_RETURN_IF_ERROR(Give());
  }
  const absl::Duration taken = SteadyClock().Now() - began;
  // No record before the other's wait for the previous one is over.
  FERRY_RETURN_IF_ERROR(gpu_.Wait(gpu_.stream()));
  FERRY_RETURN_IF_ERROR(self_.Meet());
  return taken / 2;
}

absl::StatusOr<absl::Duration> EventWire::Copy(const FloorBuffers& buffers) {
  const cuda::ScopedCurrent current(gpu_.device());
  ++turn_;
  FERRY_RETURN_IF_ERROR(self_.Meet());
  const absl::Time began = SteadyClock().Now();
  if (self_.id() == 0) {
    FERRY_RETURN_IF_ERROR(Give());
  } else {
    FERRY_RETURN_IF_ERROR(Take(/*waits=*/false));
    for (size_t i = 0; i < buffers.destinations.size(); ++i) {
      FERRY_RETURN_IF_ERROR(
          gpu_.Check(gpu_.table().copy_async(cuda::AsDevicePointer(buffers.destinations[i].data()),
                                             cuda::AsDevicePointer(buffers.sources[i].data()),
                                             buffers.sources[i].bytes(), gpu_.stream()),
                     "cuMemcpyDtoDAsync"));
    }
  }
  FERRY_RETURN_IF_ERROR(gpu_.Wait(gpu_.stream()));
  const absl::Duration taken = SteadyClock().Now() - began;
  // No record before the other's wait for the previous one is over.
  FERRY_RETURN_IF_ERROR(self_.Meet());
  return taken;
}

absl::Status EventWire::Close() {
  const cuda::ScopedCurrent current(gpu_.device());
  // Imports are destroyed before their source.
  FERRY_RETURN_IF_ERROR(gpu_.Check(gpu_.table().event_destroy(other_), "cuEventDestroy"));
  FERRY_RETURN_IF_ERROR(self_.Meet());
  return gpu_.Check(gpu_.table().event_destroy(own_), "cuEventDestroy");
}

absl::StatusOr<std::unique_ptr<EventTimer>> EventTimer::Create(CheckGpu& gpu) {
  auto timer = absl::WrapUnique(new EventTimer(gpu));
  const cuda::ScopedCurrent current(gpu.device());
  FERRY_RETURN_IF_ERROR(gpu.Check(
      gpu.table().event_create(&timer->event_, cuda::kEventDisableTiming), "cuEventCreate"));
  return timer;
}

EventTimer::~EventTimer() {
  if (event_ == nullptr) return;
  const cuda::ScopedCurrent current(gpu_.device());
  gpu_.table().event_destroy(event_);
}

absl::StatusOr<absl::Duration> EventTimer::Record(cuda::Stream stream) {
  const cuda::ScopedCurrent current(gpu_.device());
  const absl::Time began = SteadyClock().Now();
  FERRY_RETURN_IF_ERROR(gpu_.Check(gpu_.table().event_record(event_, stream), "cuEventRecord"));
  return SteadyClock().Now() - began;
}

}  // namespace ferry::check
