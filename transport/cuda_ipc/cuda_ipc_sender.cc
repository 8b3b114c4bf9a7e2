// SPDX-License-Identifier: Apache-2.0
// Exposes and exports memory, records when its bytes are ready, and releases it.
#include "transport/cuda_ipc/cuda_ipc_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/cuda/ipc_export.h"
#include "gpu/cuda/ready_tensor.h"

namespace ferry {

using cuda::ReadyEvent;
using cuda::ScopedCurrent;

namespace {

constexpr char kSentTensor[] = "a tensor that is being sent";
// How long memory that the peer could not open is staged without another attempt.
constexpr absl::Duration kRefusedFor = absl::Seconds(10);

// Identifies what was refused: the whole pool, if it has one.
uint64_t RefusedId(const cuda::IpcDescriptor& memory) {
  return memory.pool_id != 0 ? memory.pool_id : memory.allocation_id;
}

bool MayKeepRegistered(const Endpoint& peer) {
  const TransportDescription* const found = peer.FindTransport(kCudaIpcName);
  return found != nullptr && HoldsLifelines(found->descriptor);
}

bool MayKeep(const Endpoint& peer) {
  const TransportDescription* const found = peer.FindTransport(kCudaIpcName);
  return found != nullptr && MayKeepForeignMemory(found->descriptor);
}

}  // namespace

CudaIpcSender::CudaIpcSender(TransportEnvironment environment, const Endpoint& peer,
                             std::shared_ptr<DeferredReleaseQueue> grace)
    : environment_(std::move(environment)),
      grace_(std::move(grace)),
      segments_(std::make_shared<CudaIpcSegments>()),
      prober_(std::make_shared<CudaIpcProber>(environment_, peer, segments_)),
      slices_(std::make_shared<CudaIpcSliceSender>(prober_, segments_)),
      remote_mappings_(std::make_shared<CudaIpcRemoteMappings>(
          environment_.gpus != nullptr ? environment_.gpus->exports()
                                       : std::make_shared<cuda::ExportRegistry>(),
          Describe(peer.peer))),
      peer_may_keep_(MayKeep(peer)),
      peer_may_keep_registered_(MayKeepRegistered(peer)) {}

CudaIpcSender::~CudaIpcSender() = default;

void CudaIpcSender::SetControlChannel(ControlMessageSender channel) {
  prober_->SetControlChannel(channel);
  slices_->SetControlChannel(channel);
  remote_mappings_->SetControlChannel(channel);
  control_channel_ = std::move(channel);
}

absl::Status CudaIpcSender::OnControlMessage(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const CudaIpcMessage kind, KindOfCudaIpc(body));
  switch (kind) {
    case CudaIpcMessage::kProbed: {
      FERRY_ASSIGN_OR_RETURN(CudaIpcProbed probed, DecodeCudaIpcProbed(body));
      return prober_->OnProbed(std::move(probed));
    }
    case CudaIpcMessage::kTaken: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcTaken taken, DecodeCudaIpcTaken(body));
      return slices_->OnTaken(taken);
    }
    case CudaIpcMessage::kWanted: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcWanted wanted, DecodeCudaIpcWanted(body));
      return OnWanted(wanted);
    }
    case CudaIpcMessage::kReclaimed: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcReclaim reclaimed, DecodeCudaIpcReclaim(body));
      return remote_mappings_->OnReclaimed(reclaimed);
    }
    case CudaIpcMessage::kRefused: {
      FERRY_ASSIGN_OR_RETURN(const CudaIpcRefused refused, DecodeCudaIpcRefused(body));
      OnRefused(refused);
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError("a cuda_ipc reply that only an announcement can be");
  }
}

absl::Status CudaIpcSender::OnWanted(const CudaIpcWanted& wanted) {
  std::shared_ptr<const cuda::HeldSegment> held =
      segments_->Find(wanted.pair, wanted.allocation_id);
  if (held == nullptr) {
    return absl::InvalidArgumentError("a request for a segment that it was not told of");
  }
  // Exporting calls the driver, so it runs on the device's thread.
  environment_.gpus->Use(wanted.pair.source, [self = shared_from_this(), held = std::move(held),
                                              pair = wanted.pair](absl::StatusOr<Gpu*> gpu) {
    if (!gpu.ok()) return;
    (*gpu)
        ->executor
        ->Post([self, held, pair] {
          const absl::StatusOr<UniqueFd> fd = held->Export();
          // Without a reply the receiver times out, and its transfers fail with that.
          if (!fd.ok()) return;
          const int raw = fd->get();
          self->control_channel_(
                  EncodeCudaIpcSegment({pair, held->descriptor()}),
                  fd->valid() ? absl::MakeConstSpan(&raw, 1) : absl::Span<const int>())
              .IgnoreError();
        })
        .IgnoreError();
  });
  return absl::OkStatus();
}

void CudaIpcSender::OnRefused(const CudaIpcRefused& refused) {
  Exposed exposed;
  {
    absl::MutexLock lock(&mu_);
    const auto found = exposed_.find(refused.id);
    // The peer has released it meanwhile.
    if (found == exposed_.end()) return;
    exposed = std::move(found->second);
    exposed_.erase(found);
    const absl::Time now = SteadyClock().Now();
    absl::erase_if(refused_, [now](const auto& each) { return each.second.until <= now; });
    const absl::Time until = now + kRefusedFor;
    for (const CudaIpcPiece& piece : exposed.pieces) {
      refused_[{exposed.pair.destination, RefusedId(piece.memory)}] = {refused.why, until};
    }
  }
  prober_->ReleaseEvent(exposed.pair, exposed.ready);
  // The peer has the transfer descriptor; an error is told as that of a slice.
  auto pending = std::make_shared<Pending>();
  pending->id = refused.id;
  pending->tensor = std::move(exposed.tensor);
  pending->done = [self = shared_from_this(),
                   id = refused.id](absl::StatusOr<TransferDescriptor> staged) {
    if (staged.ok() || !self->CheckWanted(id).ok()) return;
    self->control_channel_(EncodeCudaIpcFailed({id, std::string(staged.status().message())}), {})
        .IgnoreError();
  };
  environment_.gpus->Use(
      exposed.pair.source, [self = shared_from_this(), pair = exposed.pair, pending,
                            why = refused.why](absl::StatusOr<Gpu*> gpu) {
        if (!gpu.ok()) return std::move(pending->done)(gpu.status());
        // Its stream may not have written it yet.
        if (cuda::ReadyOf(pending->tensor) != nullptr) {
          return self->WhenReady(**gpu, pending, [self, pair, pending, why, gpu = *gpu] {
            self->Stage(*gpu, pair, std::move(*pending), why);
          });
        }
        const absl::Status posted = (*gpu)->executor->Post([self, pair, pending, why, gpu = *gpu] {
          self->Stage(*gpu, pair, std::move(*pending), why);
        });
        if (!posted.ok()) std::move(pending->done)(posted);
      });
}

std::string CudaIpcSender::RefusalOf(const GpuPair& pair, const cuda::IpcDescriptor& memory) {
  absl::MutexLock lock(&mu_);
  const auto found = refused_.find({pair.destination, RefusedId(memory)});
  if (found == refused_.end()) return "";
  if (SteadyClock().Now() < found->second.until) return found->second.why;
  refused_.erase(found);
  return "";
}

void CudaIpcSender::Stage(Gpu& gpu, const GpuPair& pair, Pending pending, std::string why) {
  const uint64_t id = pending.id;
  slices_->Send(gpu, pair,
                {.id = id,
                 .tensor = std::move(pending.tensor),
                 .why = std::move(why),
                 .check_wanted = [self = shared_from_this(), id] { return self->CheckWanted(id); },
                 .done = std::move(pending.done)});
}

void CudaIpcSender::Expose(uint64_t id, const Tensor& tensor, const TensorLocation& to,
                           ExposeCallback done) {
  const TensorLocation from = tensor.buffer()->location();
  const GpuPair pair = {static_cast<uint16_t>(from.ordinal), static_cast<uint16_t>(to.ordinal)};
  {
    absl::MutexLock lock(&mu_);
    exposing_.insert(id);
  }
  Begin(pair, std::make_shared<Pending>(Pending{id, tensor, std::move(done)}));
}

void CudaIpcSender::Begin(const GpuPair& pair, std::shared_ptr<Pending> pending) {
  environment_.gpus->Use(pair.source, [self = shared_from_this(), pair,
                                       pending = std::move(pending)](absl::StatusOr<Gpu*> gpu) {
    if (!gpu.ok()) return std::move(pending->done)(gpu.status());
    const absl::Status posted = (*gpu)->executor->Post(
        [self, pair, pending, gpu = *gpu] { self->ExposeOnDevice(*gpu, pair, pending); });
    if (!posted.ok()) std::move(pending->done)(posted);
  });
}

void CudaIpcSender::ExposeOnDevice(Gpu& gpu, const GpuPair& pair,
                                   const std::shared_ptr<Pending>& pending) {
  if (prober_->IsOpen(pair)) return Finish(gpu, pair, std::move(*pending), /*is_ready=*/false);
  // Weak: what waits does not keep the sender.
  prober_->AwaitOpen(gpu, pair,
                     [weak = weak_from_this(), pair, pending](const absl::Status& status) {
                       if (!status.ok()) return std::move(pending->done)(status);
                       if (const auto self = weak.lock()) self->Begin(pair, pending);
                     });
}

absl::StatusOr<CudaIpcSender::Plan> CudaIpcSender::PlanFor(Gpu& gpu, const GpuPair& pair,
                                                           const Tensor& tensor) {
  Plan plan;
  if (tensor.buffer()->arena() == gpu.arena.get()) {
    FERRY_ASSIGN_OR_RETURN(CudaIpcPiece piece, segments_->Piece(*gpu.arena, *cuda::MemoryOf(tensor),
                                                                pair, plan.descriptors));
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
  for (const cuda::ExportedPiece& each : *exported) {
    const std::string refusal = RefusalOf(pair, each.descriptor);
    if (refusal.empty()) continue;
    plan.why_staged = absl::StrCat("the receiver could not open its memory: ", refusal);
    return plan;
  }
  for (cuda::ExportedPiece& each : *exported) {
    CudaIpcPiece piece = {.memory = each.descriptor, .has_fd = each.fd.valid()};
    if (each.fd.valid()) plan.descriptors.push_back(std::move(each.fd));
    if (!peer_may_keep_) piece.memory.pool_id = 0;
    if (peer_may_keep_registered_ &&
        environment_.gpus->exports()->IsKnown(piece.memory.allocation_id)) {
      // Null if the program wants it back: then the peer closes it before the ACK.
      auto mapping = remote_mappings_->Acquire(pair, piece.memory.allocation_id);
      piece.may_stay_open = mapping != nullptr;
      if (mapping != nullptr) plan.remote_mappings.push_back(std::move(mapping));
    } else {
      // The driver keeps physical memory while it is mapped anywhere, even if its owner frees it.
      piece.may_stay_open = peer_may_keep_ && piece.memory.export_by == cuda::ExportBy::kPosixFd;
    }
    plan.pieces.push_back(std::move(piece));
  }
  return plan;
}

absl::StatusOr<cuda::EventTicket> CudaIpcSender::Mark(Gpu& gpu, const GpuPair& pair,
                                                      const ReadyEvent& ready) {
  const cuda::Stream stream = gpu.waits->TakeIdle();
  if (stream == nullptr) {
    return absl::ResourceExhaustedError("all streams that could wait for it wait already");
  }
  const ScopedCurrent current(*gpu.device);
  FERRY_RETURN_IF_ERROR(ready.EnqueueWait(*gpu.device, stream));
  return prober_->Record(pair, stream);
}

void CudaIpcSender::FinishWhenReady(Gpu& gpu, const GpuPair& pair, Pending pending) {
  auto shared = std::make_shared<Pending>(std::move(pending));
  WhenReady(gpu, shared, [self = shared_from_this(), &gpu, pair, shared] {
    self->Finish(gpu, pair, std::move(*shared), /*is_ready=*/true);
  });
}

void CudaIpcSender::WhenReady(Gpu& gpu, const std::shared_ptr<Pending>& pending,
                              std::function<void()> then) {
  const auto ready = cuda::ReadyOf(pending->tensor);
  cuda::DeviceExecutor::Watched watch;
  watch.event = ready;
  watch.what = kSentTensor;
  watch.keep = std::make_shared<const Tensor>(pending->tensor);
  // The receiver may cancel, or die, and the event may never complete.
  watch.check_wanted = [self = shared_from_this(), id = pending->id] {
    return self->CheckWanted(id);
  };
  const absl::Status watched =
      gpu.executor->Watch(std::move(watch), [self = shared_from_this(), &gpu, pending, ready,
                                             then = std::move(then)](absl::Status status) {
        if (status.ok()) status = self->CheckWanted(pending->id);
        if (status.ok()) return then();
        // The device may still write to it.
        gpu.executor
            ->Watch({.event = ready,
                     .what = kSentTensor,
                     .keep = std::make_shared<Tensor>(std::move(pending->tensor))},
                    [](absl::Status) {})
            .IgnoreError();
        std::move(pending->done)(std::move(status));
      });
  if (!watched.ok()) std::move(pending->done)(watched);
}

void CudaIpcSender::Finish(Gpu& gpu, const GpuPair& pair, Pending pending, bool is_ready) {
  const auto ready = cuda::ReadyOf(pending.tensor);
  if (ready == nullptr) is_ready = true;
  if (!is_ready) {
    // A tensor that is ready needs no event, and no wait behind others.
    const absl::StatusOr<bool> is_done = ready->IsDone();
    if (!is_done.ok()) return std::move(pending.done)(is_done.status());
    is_ready = *is_done;
    if (!is_ready && !environment_.gpus->options().waits_on_device) {
      return FinishWhenReady(gpu, pair, std::move(pending));
    }
  }
  if (!is_ready) {
    // The receiver may give it back, refuse it or go before its stream has written it.
    const absl::Status watched =
        gpu.executor->Watch({.event = ready,
                             .what = kSentTensor,
                             .keep = std::make_shared<const Tensor>(pending.tensor)},
                            [](absl::Status) {});
    if (!watched.ok()) return std::move(pending.done)(watched);
  }
  absl::StatusOr<Plan> plan = PlanFor(gpu, pair, pending.tensor);
  if (!plan.ok()) return std::move(pending.done)(plan.status());
  if (plan->pieces.empty()) {
    // A tensor that is not ready does not occupy a slot.
    if (!is_ready) return FinishWhenReady(gpu, pair, std::move(pending));
    return Stage(gpu, pair, std::move(pending), std::move(plan->why_staged));
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
      exposed_.emplace(pending.id, Exposed{.tensor = pending.tensor,
                                           .pair = pair,
                                           .ready = descriptor.ready,
                                           .pieces = std::move(descriptor.pieces),
                                           .descriptors = std::move(plan->descriptors),
                                           .remote_mappings = std::move(plan->remote_mappings)});
    }
  }
  if (!wanted.ok()) {
    prober_->ReleaseEvent(pair, descriptor.ready);
    return std::move(pending.done)(std::move(wanted));
  }
  std::move(pending.done)(std::move(body));
  // The descriptors have been sent.
  std::vector<UniqueFd> sent;
  absl::MutexLock lock(&mu_);
  if (const auto found = exposed_.find(pending.id); found != exposed_.end()) {
    sent.swap(found->second.descriptors);
  }
}

void CudaIpcSender::Release(uint64_t id) {
  Exposed exposed;
  {
    absl::MutexLock lock(&mu_);
    exposing_.erase(id);
    const auto found = exposed_.find(id);
    if (found == exposed_.end()) return;
    exposed = std::move(found->second);
    exposed_.erase(found);
  }
  prober_->ReleaseEvent(exposed.pair, exposed.ready);
}

absl::Status CudaIpcSender::CheckWanted(uint64_t id) const {
  absl::MutexLock lock(&mu_);
  return CheckWantedLocked(id);
}

absl::Status CudaIpcSender::CheckWantedLocked(uint64_t id) const {
  if (!aborted_.ok()) return aborted_;
  if (exposing_.contains(id)) return absl::OkStatus();
  return absl::CancelledError("the receiver has given it back before it had it");
}

void CudaIpcSender::Abort(const absl::Status& why) {
  struct Left {
    OfferedById exposed;
    std::vector<std::shared_ptr<const void>> remote_mappings;
  };
  auto left = std::make_shared<Left>();
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    exposing_.clear();
    left->exposed.swap(exposed_);
  }
  slices_->Abort(*grace_);
  segments_->Abort(*grace_);
  left->remote_mappings = remote_mappings_->Abort();
  prober_->Abort(why, *grace_);
  if (left->exposed.empty() && left->remote_mappings.empty()) return;
  std::vector<PeerLifeline> lines = prober_->TakeLifelines();
  if (lines.empty()) return grace_->Keep([left = std::move(left)] {});
  // A peer that has merely lost its connection has it mapped, and may be reading.
  grace_->KeepUntil(
      [lines = std::move(lines), died_at = absl::InfiniteFuture()]() mutable {
        const auto held = std::stable_partition(lines.begin(), lines.end(), [](PeerLifeline& line) {
          return line.Look() != PeerLifeline::State::kHeld;
        });
        if (held != lines.end()) {
          // The peer has not kept the others: their ends say nothing.
          lines.erase(lines.begin(), held);
          return false;
        }
        const bool has_closed = std::any_of(lines.begin(), lines.end(), [](PeerLifeline& line) {
          return line.Look() == PeerLifeline::State::kClosed;
        });
        if (has_closed) return true;
        // The driver is closing what the dead had mapped; or it is of an earlier release.
        const absl::Time now = SteadyClock().Now();
        died_at = std::min(died_at, now);
        return now >= died_at + DeferredReleaseQueue::kGrace;
      },
      [left = std::move(left)] {});
}

}  // namespace ferry
