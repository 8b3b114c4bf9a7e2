// SPDX-License-Identifier: Apache-2.0
// Exposes and exports memory, records when its bytes are ready, and releases it.
#include "transport/cuda_ipc/cuda_ipc_sender.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/cuda/ipc_export.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry {

using cuda::ReadyEvent;
using cuda::ScopedCurrent;

CudaIpcSender::CudaIpcSender(TransportEnvironment environment, Endpoint peer,
                             std::shared_ptr<DeferredReleaseQueue> grace)
    : environment_(std::move(environment)), peer_(std::move(peer)), grace_(std::move(grace)) {}

CudaIpcSender::~CudaIpcSender() = default;

void CudaIpcSender::Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
                           ExposeCallback done) {
  const TensorLocation from = tensor.buffer()->place();
  const GpuPair pair = {static_cast<uint16_t>(from.ordinal), static_cast<uint16_t>(to.ordinal)};
  {
    absl::MutexLock lock(&mu_);
    offering_.insert(id);
  }
  Begin(pair, {id, tensor, std::move(done)});
}

void CudaIpcSender::Begin(const GpuPair& pair, Pending offer) {
  environment_.gpus->Use(pair.source, [self = shared_from_this(), pair, pending = std::move(offer)](
                                          absl::StatusOr<Gpu*> gpu) mutable {
    if (!gpu.ok()) return std::move(pending.done)(gpu.status());
    // Kept separately, since a rejected post destroys its function.
    auto shared = std::make_shared<Pending>(std::move(pending));
    const absl::Status posted = (*gpu)->executor->Post(
        [self, pair, shared, gpu = *gpu] { self->OfferHere(*gpu, pair, std::move(*shared)); });
    if (!posted.ok()) std::move(shared->done)(posted);
  });
}

void CudaIpcSender::OfferHere(Gpu& gpu, const GpuPair& pair, Pending pending) {
  absl::Status status;
  bool is_first = false;
  bool is_waiting = false;
  {
    absl::MutexLock lock(&mu_);
    status = aborted_;
    if (status.ok()) {
      const auto [found, inserted] = pairs_.try_emplace(pair);
      is_first = inserted;
      Pair& state = found->second;
      is_waiting = state.phase == Phase::kProbing;
      if (is_waiting) {
        state.pending.push_back(std::move(pending));
      } else if (state.phase == Phase::kRefused) {
        status = absl::FailedPreconditionError(state.refusal);
      }
    }
  }
  if (is_first) Probe(gpu, pair);
  if (is_waiting) return;
  // Moved only if it waits. NOLINTNEXTLINE(bugprone-use-after-move)
  if (!status.ok()) return std::move(pending.done)(std::move(status));
  Finish(gpu, pair, std::move(pending), /*is_ready=*/false);
}

absl::StatusOr<CudaIpcPiece> CudaIpcSender::KeptPiece(cuda::GpuArena& arena, const Buffer& buffer,
                                                      const GpuPair& pair,
                                                      std::vector<UniqueFd>& descriptors) {
  CudaIpcPiece piece;
  piece.memory = arena.Describe(buffer);
  piece.is_kept = true;
  const std::pair key(pair.destination, piece.memory.buffer_id);
  {
    absl::MutexLock lock(&mu_);
    if (sent_.contains(key)) return piece;
  }
  FERRY_ASSIGN_OR_RETURN(UniqueFd fd, arena.ExportSegment(buffer));
  piece.has_fd = fd.valid();
  if (fd.valid()) descriptors.push_back(std::move(fd));
  std::shared_ptr<const cuda::HeldSegment> hold = arena.HoldSegment(buffer);
  absl::MutexLock lock(&mu_);
  // Only this thread sends messages about the segment, and this one first. If it is not sent after
  // all, the peer requests it.
  sent_.emplace(key, std::move(hold));
  return piece;
}

absl::StatusOr<CudaIpcSender::Plan> CudaIpcSender::PlanFor(Gpu& gpu, const GpuPair& pair,
                                                           const Tensor& tensor) {
  Plan plan;
  if (tensor.buffer()->arena() == gpu.arena.get()) {
    FERRY_ASSIGN_OR_RETURN(CudaIpcPiece piece,
                           KeptPiece(*gpu.arena, *cuda::MemoryOf(tensor), pair, plan.descriptors));
    piece.memory.offset += tensor.offset_bytes();
    piece.memory.bytes = tensor.bytes();
    plan.pieces.push_back(piece);
    return plan;
  }
  const size_t worth_mapping = environment_.gpus->options().ipc_min_bytes;
  if (tensor.bytes() < worth_mapping) {
    plan.why_staged = absl::StrCat("its ", tensor.bytes(), " bytes are not of Ferry's arena, and ",
                                   "fewer than --gpu-ipc-min-bytes");
    return plan;
  }
  absl::StatusOr<std::vector<cuda::ExportedPiece>> exported =
      cuda::ExportMemory(*gpu.device, tensor.data(), tensor.bytes());
  if (absl::IsFailedPrecondition(exported.status()) ||
      absl::IsResourceExhausted(exported.status())) {
    plan.why_staged = std::string(exported.status().message());
    return plan;
  }
  if (!exported.ok()) return exported.status();
  if (exported->size() > kMaxCudaIpcPieces) {
    plan.why_staged = absl::StrCat("it is in ", exported->size(), " pieces of physical memory");
    return plan;
  }
  for (cuda::ExportedPiece& each : *exported) {
    plan.pieces.push_back({.memory = each.descriptor, .has_fd = each.fd.valid()});
    if (each.fd.valid()) plan.descriptors.push_back(std::move(each.fd));
  }
  return plan;
}

absl::StatusOr<cuda::EventTicket> CudaIpcSender::Record(const GpuPair& pair, cuda::Stream stream) {
  cuda::InterprocessEventPool* events = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    const Pair& state = pairs_[pair];
    if (state.has_events) events = state.events.get();
  }
  if (events == nullptr) return absl::ResourceExhaustedError("the pair has no events");
  // Abort keeps the pool alive for longer than this takes.
  return events->Record(stream);
}

absl::StatusOr<cuda::EventTicket> CudaIpcSender::Mark(Gpu& gpu, const GpuPair& pair,
                                                      const ReadyEvent& ready) {
  const cuda::Stream stream = gpu.waits->TakeIdle();
  if (stream == nullptr) {
    return absl::ResourceExhaustedError("all streams that could wait for it wait already");
  }
  const ScopedCurrent current(*gpu.device);
  FERRY_RETURN_IF_ERROR(ready.MakeWait(*gpu.device, stream));
  return Record(pair, stream);
}

void CudaIpcSender::FinishWhenReady(Gpu& gpu, const GpuPair& pair, Pending pending) {
  auto shared = std::make_shared<Pending>(std::move(pending));
  const absl::Status watched = gpu.executor->Watch(
      {.event = cuda::ReadyOf(shared->tensor), .what = "a tensor that is being sent"},
      [self = shared_from_this(), &gpu, pair, shared](absl::Status status) {
        if (!status.ok()) return std::move(shared->done)(std::move(status));
        self->Finish(gpu, pair, std::move(*shared), /*is_ready=*/true);
      });
  if (!watched.ok()) std::move(shared->done)(watched);
}

void CudaIpcSender::Finish(Gpu& gpu, const GpuPair& pair, Pending pending, bool is_ready) {
  const auto ready = cuda::ReadyOf(pending.tensor);
  if (ready == nullptr) is_ready = true;
  if (!is_ready) {
    // A tensor that is ready needs no event, and no wait behind others.
    const absl::StatusOr<bool> is_done = ready->IsDone();
    if (!is_done.ok()) return std::move(pending.done)(is_done.status());
    is_ready = *is_done;
  }
  absl::StatusOr<Plan> plan = PlanFor(gpu, pair, pending.tensor);
  if (!plan.ok()) return std::move(pending.done)(plan.status());
  if (plan->pieces.empty()) {
    // A tensor that is not ready does not occupy a slot.
    if (!is_ready) return FinishWhenReady(gpu, pair, std::move(pending));
    return NextSlice(std::make_shared<Staged>(Staged{.id = pending.id,
                                                     .gpu = &gpu,
                                                     .pair = pair,
                                                     .tensor = std::move(pending.tensor),
                                                     .why = std::move(plan->why_staged),
                                                     .done = std::move(pending.done)}));
  }
  CudaIpcDescriptor descriptor;
  descriptor.pair = pair;
  descriptor.pieces = std::move(plan->pieces);
  if (!is_ready) {
    const absl::StatusOr<cuda::EventTicket> mark = Mark(gpu, pair, *ready);
    // Then the host waits, but not on this thread, which serves others.
    if (absl::IsResourceExhausted(mark.status())) {
      return FinishWhenReady(gpu, pair, std::move(pending));
    }
    if (!mark.ok()) return std::move(pending.done)(mark.status());
    descriptor.ready = *mark;
  }
  TransferDescriptor body;
  body.body = EncodeCudaIpcDescriptor(descriptor);
  for (const UniqueFd& each : plan->descriptors) body.descriptors.push_back(each.get());
  absl::Status wanted;
  {
    // In one step: from here on Release returns the event.
    absl::MutexLock lock(&mu_);
    wanted = CheckWantedLocked(pending.id);
    if (wanted.ok()) {
      offered_.emplace(pending.id, Offered{pending.tensor, pair, descriptor.ready,
                                           std::move(plan->descriptors)});
    } else {
      UnmarkLocked(pair, descriptor.ready);
    }
  }
  if (!wanted.ok()) return std::move(pending.done)(std::move(wanted));
  std::move(pending.done)(std::move(body));
  // The descriptors have been sent.
  std::vector<UniqueFd> sent;
  absl::MutexLock lock(&mu_);
  if (const auto found = offered_.find(pending.id); found != offered_.end()) {
    sent.swap(found->second.descriptors);
  }
}

void CudaIpcSender::Release(uint64_t id) {
  Offered offered;
  absl::MutexLock lock(&mu_);
  offering_.erase(id);
  const auto found = offered_.find(id);
  if (found == offered_.end()) return;
  offered = std::move(found->second);
  offered_.erase(found);
  UnmarkLocked(offered.pair, offered.ready);
}

void CudaIpcSender::Unmark(const GpuPair& pair, const cuda::EventTicket& ticket) {
  absl::MutexLock lock(&mu_);
  UnmarkLocked(pair, ticket);
}

void CudaIpcSender::UnmarkLocked(const GpuPair& pair, const cuda::EventTicket& ticket) {
  const auto found = pairs_.find(pair);
  if (ticket.sequence == 0 || found == pairs_.end() || found->second.events == nullptr) return;
  found->second.events->Release(ticket).IgnoreError();
}

void CudaIpcSender::Abort(const absl::Status& why) {
  struct Leftovers {
    absl::flat_hash_map<GpuPair, Pair> pairs;
    absl::flat_hash_map<uint64_t, Offered> offered;
    std::map<std::pair<uint64_t, uint64_t>, Slice> slices;
    absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::shared_ptr<const cuda::HeldSegment>>
        sent;
  };
  auto left = std::make_shared<Leftovers>();
  std::vector<Pending> pending;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    offering_.clear();
    left->pairs.swap(pairs_);
    left->offered.swap(offered_);
    left->slices.swap(slices_);
    left->sent.swap(sent_);
  }
  for (auto& [pair, state] : left->pairs) {
    for (Pending& each : state.pending) pending.push_back(std::move(each));
    state.pending.clear();
  }
  for (Pending& each : pending) std::move(each.done)(why);
  if (left->pairs.empty() && left->offered.empty() && left->slices.empty() && left->sent.empty()) {
    return;
  }
  grace_->Keep([left = std::move(left)] {
    for (auto& [key, slice] : left->slices) {
      slice.ring->Give(std::move(slice.slot), std::move(slice.copied));
    }
  });
}

}  // namespace ferry
