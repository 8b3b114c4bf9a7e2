// SPDX-License-Identifier: Apache-2.0
// Probing, exporting, marking when the bytes are there, and letting go.
#include "transport/cuda_ipc/cuda_ipc_outlet.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/ipc_export.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry {
namespace {

using cuda::ReadyEvent;
using cuda::ScopedCurrent;

// Records that the peer has not passed yet, for each pair of devices.
constexpr int kEvents = 64;
constexpr absl::Duration kProbeTimeout = absl::Seconds(10);
// A lane that has ended says nothing of whether its peer still reads what it was offered, or has
// closed what it opened: that takes it much less.
constexpr absl::Duration kGrace = absl::Seconds(2);

}  // namespace

CudaIpcOutlet::CudaIpcOutlet(TransportEnvironment environment, Endpoint peer)
    : environment_(std::move(environment)), peer_(std::move(peer)) {}

CudaIpcOutlet::~CudaIpcOutlet() = default;

void CudaIpcOutlet::Offer(uint64_t id, const Tensor& tensor, const MemoryPlace& to,
                          OfferCallback done) {
  const MemoryPlace from = tensor.buffer()->place();
  const GpuPair pair = {static_cast<uint16_t>(from.ordinal), static_cast<uint16_t>(to.ordinal)};
  environment_.gpus->Use(from.ordinal, [self = shared_from_this(), pair,
                                        pending = Pending{id, tensor, std::move(done)}](
                                           absl::StatusOr<Gpu*> gpu) mutable {
    if (!gpu.ok()) return std::move(pending.done)(gpu.status());
    // Kept apart, since a post that is refused has taken its function.
    auto shared = std::make_shared<Pending>(std::move(pending));
    const absl::Status posted = (*gpu)->executor->Post(
        [self, pair, shared, gpu = *gpu] { self->OfferHere(*gpu, pair, std::move(*shared)); });
    if (!posted.ok()) std::move(shared->done)(posted);
  });
}

void CudaIpcOutlet::OfferHere(Gpu& gpu, const GpuPair& pair, Pending pending) {
  absl::Status status;
  bool is_first = false;
  {
    absl::MutexLock lock(&mu_);
    status = aborted_;
    if (status.ok()) {
      const auto [found, inserted] = pairs_.try_emplace(pair);
      is_first = inserted;
      Pair& state = found->second;
      if (state.phase == Phase::kProbing) {
        state.pending.push_back(std::move(pending));
        if (!is_first) return;
      } else if (state.phase == Phase::kRefused) {
        status = absl::FailedPreconditionError(state.refusal);
      }
    }
  }
  if (is_first) {
    const absl::Status sent = SendProbe(gpu, pair);
    if (!sent.ok()) return Settle(pair, std::string(sent.message()));
    environment_.loop->PostAt(SteadyClock().Now() + kProbeTimeout, [weak = weak_from_this(), pair] {
      if (const auto self = weak.lock()) {
        self->Settle(pair, absl::StrCat(Describe(self->peer_.peer), " has not said within ",
                                        absl::FormatDuration(kProbeTimeout),
                                        " whether it can open memory of gpu:", pair.source));
      }
    });
    return;
  }
  if (!status.ok()) return std::move(pending.done)(std::move(status));
  Finish(gpu, pair, std::move(pending), /*is_ready=*/false);
}

absl::Status CudaIpcOutlet::SendProbe(Gpu& gpu, const GpuPair& pair) {
  CudaIpcProbe probe;
  probe.pair = pair;
  probe.seed = std::random_device{}();
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<cuda::InterprocessEventPool> events,
                         cuda::InterprocessEventPool::Create(gpu.device, kEvents));
  probe.events = events->handles();
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> memory,
                         gpu.arena->Allocate(kCudaIpcProbeBytes));
  std::string bytes(kCudaIpcProbeBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(CudaIpcProbeByte(probe.seed, i));
  }
  // Of its own: the other one may stand behind a kernel of the user's.
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaStream> stream,
                         cuda::CudaStream::Create(gpu.device));
  {
    const ScopedCurrent current(*gpu.device);
    const cuda::CudaTable& table = gpu.device->table();
    FERRY_RETURN_IF_ERROR(gpu.device->Check(
        table.copy_to_device_async(memory->pointer(), bytes.data(), bytes.size(), stream->get()),
        "cuMemcpyHtoDAsync"));
    // Once for each pair, on this device's own thread.
    FERRY_RETURN_IF_ERROR(
        gpu.device->Check(table.stream_synchronize(stream->get()), "cuStreamSynchronize"));
  }
  probe.memory = gpu.arena->Describe(*memory);
  probe.memory.bytes = kCudaIpcProbeBytes;
  FERRY_ASSIGN_OR_RETURN(const UniqueFd fd, gpu.arena->ExportSegment(*memory));
  {
    absl::MutexLock lock(&mu_);
    Pair& state = pairs_[pair];
    state.events = std::move(events);
    state.memory = std::move(memory);
  }
  const int raw = fd.get();
  return announce_(EncodeCudaIpcProbe(probe),
                   fd.valid() ? absl::MakeConstSpan(&raw, 1) : absl::Span<const int>());
}

absl::Status CudaIpcOutlet::OnReply(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(CudaIpcProbed probed, DecodeCudaIpcProbed(body));
  {
    absl::MutexLock lock(&mu_);
    const auto found = pairs_.find(probed.pair);
    if (found == pairs_.end() || found->second.events == nullptr) {
      return absl::InvalidArgumentError("an answer to a probe that was not sent");
    }
  }
  if (!probed.refusal.empty()) {
    probed.refusal =
        absl::StrCat(Describe(peer_.peer), " cannot open memory of gpu:", probed.pair.source, ": ",
                     probed.refusal);
  }
  Settle(probed.pair, std::move(probed.refusal));
  return absl::OkStatus();
}

void CudaIpcOutlet::Settle(const GpuPair& pair, std::string refusal) {
  std::vector<Pending> pending;
  std::shared_ptr<Buffer> memory;
  const bool is_open = refusal.empty();
  absl::Status why = absl::FailedPreconditionError(refusal);
  {
    absl::MutexLock lock(&mu_);
    const auto found = pairs_.find(pair);
    if (found == pairs_.end() || found->second.phase != Phase::kProbing) return;
    found->second.phase = is_open ? Phase::kOpen : Phase::kRefused;
    found->second.refusal = std::move(refusal);
    pending.swap(found->second.pending);
    memory = std::move(found->second.memory);
  }
  for (Pending& each : pending) {
    if (is_open) {
      const MemoryPlace to = {MemorySpace::kCuda, pair.destination};
      Offer(each.id, each.tensor, to, std::move(each.done));
    } else {
      std::move(each.done)(why);
    }
  }
}

absl::StatusOr<Tensor> CudaIpcOutlet::CopyToArena(Gpu& gpu, const Tensor& tensor) {
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> buffer,
                         gpu.arena->Allocate(tensor.bytes()));
  const ScopedCurrent current(*gpu.device);
  const cuda::Stream stream = gpu.copies->get();
  if (const auto ready = cuda::ReadyOf(tensor); ready != nullptr) {
    FERRY_RETURN_IF_ERROR(ready->MakeWait(*gpu.device, stream));
  }
  FERRY_RETURN_IF_ERROR(gpu.device->Check(
      gpu.device->table().copy_async(buffer->pointer(), cuda::AsDevicePointer(tensor.data()),
                                     tensor.bytes(), stream),
      "cuMemcpyAsync"));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const ReadyEvent> copied,
                         ReadyEvent::Record(*gpu.events, stream));
  FERRY_RETURN_IF_ERROR(gpu.executor->Watch({.event = copied,
                                             .what = "a copy into memory that can be mapped",
                                             .keep = std::make_shared<Tensor>(tensor)},
                                            [](absl::Status) {}));
  FERRY_ASSIGN_OR_RETURN(const Tensor copy,
                         Tensor::Create(tensor.dtype(), tensor.shape(), std::move(buffer)));
  return cuda::WithReady(copy, std::move(copied));
}

absl::StatusOr<std::vector<CudaIpcPiece>> CudaIpcOutlet::PiecesOf(Gpu& gpu, const GpuPair& pair,
                                                                  Offered& offered) {
  Tensor& tensor = offered.tensor;
  std::vector<UniqueFd>& descriptors = offered.descriptors;
  std::vector<CudaIpcPiece> pieces;
  if (tensor.buffer()->arena() != gpu.arena.get()) {
    absl::StatusOr<std::vector<cuda::ExportedPiece>> exported =
        cuda::ExportMemory(*gpu.device, tensor.data(), tensor.bytes());
    if (exported.ok() && exported->size() <= kMaxCudaIpcPieces) {
      for (cuda::ExportedPiece& each : *exported) {
        pieces.push_back({.memory = each.descriptor, .has_fd = each.fd.valid()});
        if (each.fd.valid()) descriptors.push_back(std::move(each.fd));
      }
      return pieces;
    }
    if (!exported.ok() && !absl::IsFailedPrecondition(exported.status())) return exported.status();
    FERRY_ASSIGN_OR_RETURN(tensor, CopyToArena(gpu, tensor));
  }
  CudaIpcPiece piece;
  piece.memory = gpu.arena->Describe(*cuda::MemoryOf(tensor));
  piece.memory.offset += tensor.offset_bytes();
  piece.memory.bytes = tensor.bytes();
  piece.is_kept = true;
  bool is_known = false;
  {
    absl::MutexLock lock(&mu_);
    is_known = sent_.contains({pair.destination, piece.memory.buffer_id});
  }
  if (!is_known) {
    FERRY_ASSIGN_OR_RETURN(UniqueFd fd, gpu.arena->ExportSegment(*cuda::MemoryOf(tensor)));
    piece.has_fd = fd.valid();
    if (fd.valid()) descriptors.push_back(std::move(fd));
    offered.new_segment = piece.memory.buffer_id;
    offered.hold = gpu.arena->HoldSegment(*cuda::MemoryOf(tensor));
  }
  pieces.push_back(piece);
  return pieces;
}

absl::StatusOr<cuda::EventTicket> CudaIpcOutlet::Mark(Gpu& gpu, const GpuPair& pair,
                                                      const Tensor& tensor) {
  const auto ready = cuda::ReadyOf(tensor);
  if (ready == nullptr) return cuda::EventTicket();
  // Then nothing has to wait, neither for this nor behind others.
  FERRY_ASSIGN_OR_RETURN(const bool is_done, ready->IsDone());
  if (is_done) return cuda::EventTicket();
  cuda::InterprocessEventPool* events = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    events = pairs_[pair].events.get();
  }
  if (events == nullptr) return absl::FailedPreconditionError("there are no events for the pair");
  // Abort leaves the pool alone for longer than this takes.
  const ScopedCurrent current(*gpu.device);
  FERRY_RETURN_IF_ERROR(ready->MakeWait(*gpu.device, gpu.copies->get()));
  return events->Record(gpu.copies->get());
}

void CudaIpcOutlet::Finish(Gpu& gpu, const GpuPair& pair, Pending pending, bool is_ready) {
  Offered offered;
  offered.tensor = pending.tensor;
  offered.pair = pair;
  CudaIpcTicket ticket;
  ticket.pair = pair;
  absl::StatusOr<std::vector<CudaIpcPiece>> pieces = PiecesOf(gpu, pair, offered);
  if (!pieces.ok()) return std::move(pending.done)(pieces.status());
  ticket.pieces = *std::move(pieces);
  if (!is_ready) {
    absl::StatusOr<cuda::EventTicket> mark = Mark(gpu, pair, offered.tensor);
    if (absl::IsResourceExhausted(mark.status())) {
      // Then the host waits: not on this thread, which has others to serve.
      auto shared = std::make_shared<Pending>(std::move(pending));
      shared->tensor = offered.tensor;
      const absl::Status watched = gpu.executor->Watch(
          {.event = cuda::ReadyOf(offered.tensor), .what = "a tensor that is being sent"},
          [self = shared_from_this(), &gpu, pair, shared](absl::Status status) {
            if (!status.ok()) return std::move(shared->done)(std::move(status));
            self->Finish(gpu, pair, std::move(*shared), /*is_ready=*/true);
          });
      if (!watched.ok()) std::move(shared->done)(watched);
      return;
    }
    if (!mark.ok()) return std::move(pending.done)(mark.status());
    ticket.ready = offered.ready = *mark;
  }
  TransportTicket body;
  body.body = EncodeCudaIpcTicket(ticket);
  for (const UniqueFd& each : offered.descriptors) body.descriptors.push_back(each.get());
  absl::Status aborted;
  {
    absl::MutexLock lock(&mu_);
    aborted = aborted_;
    if (aborted.ok()) {
      if (offered.new_segment != 0) {
        sent_.emplace(std::pair(pair.destination, offered.new_segment), std::move(offered.hold));
      }
      offered_.emplace(pending.id, std::move(offered));
    }
  }
  if (!aborted.ok()) return std::move(pending.done)(std::move(aborted));
  std::move(pending.done)(std::move(body));
  // They are on their way.
  std::vector<UniqueFd> sent;
  absl::MutexLock lock(&mu_);
  if (const auto found = offered_.find(pending.id); found != offered_.end()) {
    sent.swap(found->second.descriptors);
  }
}

void CudaIpcOutlet::Release(uint64_t id) {
  Offered offered;
  absl::MutexLock lock(&mu_);
  const auto found = offered_.find(id);
  if (found == offered_.end()) return;
  offered = std::move(found->second);
  offered_.erase(found);
  if (offered.ready.sequence == 0) return;
  const auto pair = pairs_.find(offered.pair);
  if (pair != pairs_.end() && pair->second.events != nullptr) {
    pair->second.events->Release(offered.ready).IgnoreError();
  }
}

void CudaIpcOutlet::Abort(const absl::Status& why) {
  struct Leftovers {
    absl::flat_hash_map<GpuPair, Pair> pairs;
    absl::flat_hash_map<uint64_t, Offered> offered;
    absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::shared_ptr<const void>> sent;
  };
  auto left = std::make_shared<Leftovers>();
  std::vector<Pending> pending;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    left->pairs.swap(pairs_);
    left->offered.swap(offered_);
    left->sent.swap(sent_);
  }
  for (auto& [pair, state] : left->pairs) {
    for (Pending& each : state.pending) pending.push_back(std::move(each));
    state.pending.clear();
  }
  for (Pending& each : pending) std::move(each.done)(why);
  environment_.loop->PostAt(SteadyClock().Now() + kGrace, [left = std::move(left)] {});
}

std::string CudaIpcOutlet::Refusal(const GpuPair& pair) const {
  absl::MutexLock lock(&mu_);
  const auto found = pairs_.find(pair);
  return found == pairs_.end() ? "" : found->second.refusal;
}

}  // namespace ferry
