// SPDX-License-Identifier: Apache-2.0
// Opens, copies and compares what a probe names, on the side executor.
#include "transport/cuda_ipc/cuda_ipc_probe_responder.h"

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {

using cuda::ImportedMemory;
using cuda::ScopedCurrent;

void CudaIpcProbeResponder::OnProbe(CudaIpcProbe probe, UniqueFd fd) {
  const auto destination = probe.pair.destination;
  gpus_->Use(destination, [self = shared_from_this(), probe = std::move(probe),
                           fd = std::move(fd)](absl::StatusOr<Gpu*> gpu) mutable {
    if (!gpu.ok()) return self->Reply(probe, gpu.status());
    auto shared = std::make_shared<CudaIpcProbe>(std::move(probe));
    self->mappings_->OpenForProbe(
        **gpu, shared->memory, std::move(fd),
        [self, gpu = *gpu, shared](absl::StatusOr<ImportedMemory> memory) {
          if (!memory.ok()) return self->Reply(*shared, memory.status());
          self->Answer(*gpu, *shared, *memory);
        });
  });
}

void CudaIpcProbeResponder::Answer(Gpu& gpu, const CudaIpcProbe& probe,
                                   const ImportedMemory& memory) {
  std::string events_unavailable_reason;
  const auto try_it = [&]() -> absl::Status {
    if (probe.memory.offset + probe.memory.bytes > memory.bytes()) {
      return absl::InvalidArgumentError("the probe lies outside its memory");
    }
    // Memory is usable without events.
    absl::StatusOr<std::unique_ptr<cuda::ImportedEvents>> events =
        absl::FailedPreconditionError("the sender's device has none between processes");
    if (!probe.events.empty()) events = cuda::ImportedEvents::Open(gpu.device, probe.events);
    if (!events.ok()) events_unavailable_reason = std::string(events.status().message());
    FERRY_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaStream> stream,
                           cuda::CudaStream::Create(gpu.device));
    std::string bytes(kCudaIpcProbeBytes, '\0');
    {
      const ScopedCurrent current(*gpu.device);
      const cuda::CudaTable& table = gpu.device->table();
      FERRY_RETURN_IF_ERROR(gpu.device->Check(
          table.copy_to_host_async(bytes.data(), memory.base() + probe.memory.offset, bytes.size(),
                                   stream->get()),
          "cuMemcpyDtoHAsync"));
      FERRY_RETURN_IF_ERROR(
          gpu.device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize"));
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (static_cast<unsigned char>(bytes[i]) == CudaIpcProbeByte(probe.seed, i)) continue;
      return absl::DataLossError(absl::StrCat("its memory can be mapped, but byte ", i,
                                              " of a probe is not what was sent"));
    }
    {
      absl::MutexLock lock(&mu_);
      if (!aborted_.ok()) return aborted_;
      if (events.ok()) {
        events_[probe.pair] = *std::move(events);
      } else {
        without_events_[probe.pair] = events_unavailable_reason;
      }
    }
    mappings_->Keep(memory);
    return absl::OkStatus();
  };
  const absl::Status status = try_it();
  Reply(probe, status, std::move(events_unavailable_reason));
}

void CudaIpcProbeResponder::Reply(const CudaIpcProbe& probe, const absl::Status& status,
                                  std::string events_unavailable_reason) {
  // No reply is needed if the control channel has closed.
  control_channel_(EncodeCudaIpcProbed({probe.pair, probe.seed, std::string(status.message()),
                                        std::move(events_unavailable_reason)}),
                   {})
      .IgnoreError();
}

absl::StatusOr<std::shared_ptr<cuda::ImportedEvents>> CudaIpcProbeResponder::EventsOf(
    const GpuPair& pair) const {
  absl::MutexLock lock(&mu_);
  const auto found = events_.find(pair);
  if (found != events_.end()) return found->second;
  if (!aborted_.ok()) return aborted_;
  return absl::InvalidArgumentError("a cuda_ipc descriptor with an event before its probe");
}

std::string CudaIpcProbeResponder::WhyWithoutEvents(const GpuPair& pair) const {
  absl::MutexLock lock(&mu_);
  const auto found = without_events_.find(pair);
  return found == without_events_.end() ? "" : found->second;
}

void CudaIpcProbeResponder::Abort(const absl::Status& why) {
  absl::flat_hash_map<GpuPair, std::shared_ptr<cuda::ImportedEvents>> events;
  absl::MutexLock lock(&mu_);
  if (aborted_.ok()) aborted_ = why;
  events.swap(events_);
}

}  // namespace ferry
