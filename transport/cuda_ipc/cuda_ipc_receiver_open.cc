// SPDX-License-Identifier: Apache-2.0
// Handles the producer's announcements, and opens its memory.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "net/event_loop.h"
#include "transport/control/descriptors.h"
#include "transport/cuda_ipc/cuda_ipc_receiver.h"

namespace ferry {
namespace {

using cuda::ImportedMemory;
using cuda::ScopedCurrent;

constexpr absl::Duration kOpenTimeout = absl::Seconds(10);

UniqueFd TakeFirst(absl::Span<UniqueFd> descriptors) {
  return descriptors.empty() ? UniqueFd() : std::move(descriptors[0]);
}

// UNAVAILABLE closes the control channel, as for a failed producer; a transfer that cannot be
// opened now must not.
absl::Status OfThisTransfer(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

}  // namespace

absl::Status CudaIpcReceiver::OnControlMessage(absl::string_view body,
                                               absl::Span<UniqueFd> descriptors) {
  FERRY_ASSIGN_OR_RETURN(const CudaIpcMessage kind, KindOfCudaIpc(body));
  if (environment_.gpus == nullptr) {
    return absl::InvalidArgumentError("GPU memory is announced to a process that uses no GPUs");
  }
  if (kind == CudaIpcMessage::kProbe) return OnProbe(body, descriptors);
  // Transfer descriptors refer to these, so none may be missing.
  FERRY_RETURN_IF_ERROR(CheckDescriptors(descriptors));
  switch (kind) {
    case CudaIpcMessage::kSegment:
      return OnSegment(body, descriptors);
    case CudaIpcMessage::kSlice:
      return OnSlice(body, descriptors);
    case CudaIpcMessage::kFailed:
      return OnFailed(body);
    default:
      return absl::InvalidArgumentError("a cuda_ipc announcement that only a reply can be");
  }
}

absl::Status CudaIpcReceiver::OnProbe(absl::string_view body, absl::Span<UniqueFd> descriptors) {
  FERRY_ASSIGN_OR_RETURN(CudaIpcProbe probe, DecodeCudaIpcProbe(body));
  // A path that cannot be opened now does not close the control channel; it is probed again later.
  if (const absl::Status lost = CheckDescriptors(descriptors); !lost.ok()) {
    Reply(probe, lost);
    return absl::OkStatus();
  }
  const auto destination = probe.pair.destination;
  environment_.gpus->Use(
      destination, [self = shared_from_this(), probe = std::move(probe),
                    fd = TakeFirst(descriptors)](absl::StatusOr<Gpu*> gpu) mutable {
        if (!gpu.ok()) return self->Reply(probe, gpu.status());
        const cuda::ImportKey key = {self->peer_.peer.incarnation, probe.memory.buffer_id};
        auto shared = std::make_shared<CudaIpcProbe>(std::move(probe));
        const absl::Status started = self->cache_of_(**gpu).Open(
            key, shared->memory, std::move(fd), SteadyClock().Now() + kOpenTimeout,
            [self, gpu = *gpu, shared](absl::StatusOr<ImportedMemory> memory) {
              if (!memory.ok()) return self->Reply(*shared, memory.status());
              self->AnswerProbe(*gpu, *shared, *memory);
            });
        if (!started.ok()) self->Reply(*shared, started);
      });
  return absl::OkStatus();
}

// On the side executor, which may wait for its device.
void CudaIpcReceiver::AnswerProbe(Gpu& gpu, const CudaIpcProbe& probe,
                                  const ImportedMemory& memory) {
  std::string why_no_events;
  const auto try_it = [&]() -> absl::Status {
    if (probe.memory.offset + probe.memory.bytes > memory.bytes()) {
      return absl::InvalidArgumentError("the probe lies outside its memory");
    }
    // Memory is usable without events.
    absl::StatusOr<std::unique_ptr<cuda::ImportedEvents>> events =
        absl::FailedPreconditionError("the sender's device has none between processes");
    if (!probe.events.empty()) events = cuda::ImportedEvents::Open(gpu.device, probe.events);
    if (!events.ok()) why_no_events = std::string(events.status().message());
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
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    if (events.ok()) {
      events_[probe.pair] = *std::move(events);
    } else {
      without_events_[probe.pair] = why_no_events;
    }
    kept_.push_back(memory);
    return absl::OkStatus();
  };
  const absl::Status status = try_it();
  Reply(probe, status, std::move(why_no_events));
}

void CudaIpcReceiver::Reply(const CudaIpcProbe& probe, const absl::Status& status,
                            std::string why_no_events) {
  // No reply is needed if the control channel has closed.
  control_channel_(EncodeCudaIpcProbed({probe.pair, probe.seed, std::string(status.message()),
                                        std::move(why_no_events)}),
                   {})
      .IgnoreError();
}

void CudaIpcReceiver::OpenPiece(Gpu& gpu, const GpuPair& pair, const CudaIpcPiece& piece,
                                UniqueFd fd, OpenCallback done) {
  cuda::IpcImportCache& cache = cache_of_(gpu);
  const cuda::ImportKey key = {peer_.peer.incarnation, piece.memory.buffer_id};
  const bool is_new = piece.is_kept && piece.has_fd;
  const auto keep = [self = shared_from_this(), is_new](const ImportedMemory& memory) {
    absl::MutexLock lock(&self->mu_);
    if (is_new && self->aborted_.ok()) self->kept_.push_back(memory);
  };
  if (std::optional<ImportedMemory> found = cache.Find(key); found.has_value()) {
    keep(*found);
    return done(*std::move(found));
  }
  // The job with its descriptor may be opening it.
  const bool may_ask =
      piece.is_kept && !fd.valid() && piece.memory.export_by == cuda::ExportBy::kPosixFd;
  const absl::Status started =
      cache.Open(key, piece.memory, std::move(fd), SteadyClock().Now() + kOpenTimeout,
                 [self = shared_from_this(), keep, done, may_ask, pair,
                  id = piece.memory.buffer_id](absl::StatusOr<ImportedMemory> memory) {
                   if (!memory.ok() && may_ask) return self->AskForSegment(pair, id, done);
                   if (!memory.ok()) return done(OfThisTransfer(memory.status()));
                   keep(*memory);
                   done(std::move(memory));
                 });
  if (!started.ok()) done(started);
}

void CudaIpcReceiver::AskForSegment(const GpuPair& pair, uint64_t buffer_id, OpenCallback done) {
  const std::pair key(pair.destination, buffer_id);
  bool is_first = false;
  {
    absl::MutexLock lock(&mu_);
    is_first = aborted_.ok() && !asked_.contains(key);
    if (aborted_.ok()) asked_[key].push_back(std::exchange(done, nullptr));
  }
  if (done != nullptr) return done(absl::CancelledError("the control channel has closed"));
  if (!is_first) return;
  // If the control channel has closed, that ends the waiting jobs too.
  control_channel_(EncodeCudaIpcWanted({pair, buffer_id}), {}).IgnoreError();
  environment_.loop->PostAt(
      SteadyClock().Now() + kOpenTimeout, [weak = weak_from_this(), pair, buffer_id] {
        if (const auto self = weak.lock()) {
          self->EndAsking(pair, buffer_id,
                          absl::DeadlineExceededError(absl::StrCat(
                              Describe(self->peer_.peer), " has not sent the descriptor of its ",
                              "memory again within ", absl::FormatDuration(kOpenTimeout))));
        }
      });
}

void CudaIpcReceiver::EndAsking(const GpuPair& pair, uint64_t buffer_id,
                                const absl::StatusOr<ImportedMemory>& memory) {
  std::vector<OpenCallback> waiting;
  {
    absl::MutexLock lock(&mu_);
    const auto found = asked_.find({pair.destination, buffer_id});
    if (found == asked_.end()) return;
    waiting = std::move(found->second);
    asked_.erase(found);
  }
  for (const OpenCallback& done : waiting) done(memory);
}

absl::Status CudaIpcReceiver::OnSegment(absl::string_view body, absl::Span<UniqueFd> descriptors) {
  FERRY_ASSIGN_OR_RETURN(const CudaIpcSegment segment, DecodeCudaIpcSegment(body));
  {
    absl::MutexLock lock(&mu_);
    // Too late, or not requested.
    if (!asked_.contains({segment.pair.destination, segment.memory.buffer_id})) {
      return absl::OkStatus();
    }
  }
  environment_.gpus->Use(segment.pair.destination, [self = shared_from_this(), segment,
                                                    fd = TakeFirst(descriptors)](
                                                       absl::StatusOr<Gpu*> gpu) mutable {
    const uint64_t id = segment.memory.buffer_id;
    if (!gpu.ok()) return self->EndAsking(segment.pair, id, gpu.status());
    if (!fd.valid()) {
      return self->EndAsking(
          segment.pair, id, absl::FailedPreconditionError("a segment came without its descriptor"));
    }
    const CudaIpcPiece piece = {.memory = segment.memory, .has_fd = true, .is_kept = true};
    self->OpenPiece(**gpu, segment.pair, piece, std::move(fd),
                    [self, pair = segment.pair, id](absl::StatusOr<ImportedMemory> memory) {
                      self->EndAsking(pair, id, memory);
                    });
  });
  return absl::OkStatus();
}

}  // namespace ferry
