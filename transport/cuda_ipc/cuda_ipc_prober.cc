// SPDX-License-Identifier: Apache-2.0
// Probes pairs of devices, retries with back-off, and handles the peer's replies.
#include "transport/cuda_ipc/cuda_ipc_prober.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "net/event_loop.h"

namespace ferry {
namespace {

using cuda::ScopedCurrent;

// Events that the peer has not passed yet, for each pair of devices.
constexpr int kEvents = 64;
// Memory for a probe when the arena is full.
constexpr size_t kSpareBytes = size_t{2} << 20;
constexpr absl::Duration kProbeTimeout = absl::Seconds(10);
// A refusal may be temporary (memory, descriptors). Retried after the first timeout, which then
// doubles each time.
constexpr absl::Duration kFirstTimeout = absl::Seconds(1);
constexpr absl::Duration kLongestTimeout = absl::Minutes(5);

}  // namespace

CudaIpcProber::CudaIpcProber(const TransportEnvironment& environment, Endpoint peer,
                             std::shared_ptr<CudaIpcSegments> segments)
    : environment_(environment), peer_(std::move(peer)), segments_(std::move(segments)) {}

bool CudaIpcProber::IsOpen(const GpuPair& pair) const {
  absl::MutexLock lock(&mu_);
  const auto found = pairs_.find(pair);
  return found != pairs_.end() && found->second.phase == Phase::kOpen;
}

void CudaIpcProber::AwaitOpen(Gpu& gpu, const GpuPair& pair, OpenCallback done) {
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
        state.waiting.push_back(std::exchange(done, nullptr));
      } else if (state.phase == Phase::kRefused) {
        status = absl::FailedPreconditionError(state.refusal);
      }
    }
  }
  if (is_first) Probe(gpu, pair);
  if (done != nullptr) std::move(done)(status);
}

void CudaIpcProber::Probe(Gpu& gpu, const GpuPair& pair) {
  const uint32_t seed = std::random_device{}();
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return;
    Pair& state = pairs_[pair];
    state.seed = seed;
    if (state.events != nullptr) state.retired.push_back(std::move(state.events));
  }
  const absl::Status sent = SendProbe(gpu, pair, seed);
  if (!sent.ok()) return Settle(pair, seed, std::string(sent.message()));
  environment_.loop->PostAt(
      SteadyClock().Now() + kProbeTimeout, [weak = weak_from_this(), pair, seed] {
        const auto self = weak.lock();
        if (self == nullptr) return;
        self->Settle(pair, seed,
                     absl::StrCat(Describe(self->peer_.peer), " has not said within ",
                                  absl::FormatDuration(kProbeTimeout),
                                  " whether it can open memory of gpu:", pair.source));
      });
}

absl::Status CudaIpcProber::SendProbe(Gpu& gpu, const GpuPair& pair, uint32_t seed) {
  CudaIpcProbe probe;
  probe.pair = pair;
  probe.seed = seed;
  // Without events the host waits for tensors that are not ready.
  absl::StatusOr<std::unique_ptr<cuda::InterprocessEventPool>> events =
      cuda::InterprocessEventPool::Create(gpu.device, kEvents);
  if (events.ok()) probe.events = (*events)->handles();
  std::shared_ptr<cuda::GpuArena> arena = gpu.arena;
  absl::StatusOr<std::shared_ptr<cuda::DeviceBuffer>> room = arena->Allocate(kCudaIpcProbeBytes);
  if (absl::IsResourceExhausted(room.status())) {
    // A full arena is no reason to fail: memory that cannot be mapped is staged through memory of
    // its own.
    FERRY_ASSIGN_OR_RETURN(
        arena, cuda::GpuArena::Create(gpu.device, environment_.gpus->gate(),
                                      {.budget_bytes = kSpareBytes, .segment_bytes = kSpareBytes}));
    room = arena->Allocate(kCudaIpcProbeBytes);
  }
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceBuffer> memory, std::move(room));
  std::string bytes(kCudaIpcProbeBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(CudaIpcProbeByte(probe.seed, i));
  }
  // A stream of its own: the other may be blocked behind a kernel of the user's.
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
  probe.memory = arena->Describe(*memory);
  probe.memory.bytes = kCudaIpcProbeBytes;
  FERRY_ASSIGN_OR_RETURN(const UniqueFd fd, arena->ExportSegment(*memory));
  // One for each probe: this end of it is closed at once, so that no child of this process, which
  // would keep it, is likely to inherit it.
  FERRY_ASSIGN_OR_RETURN(PeerLifeline::Made lifeline, PeerLifeline::Make());
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    Pair& state = pairs_[pair];
    if (events.ok()) state.events = *std::move(events);
    state.has_asked = true;
    state.segment = arena->HoldSegment(*memory);
    state.memory = std::move(memory);
    // Those that the peer did not keep, since it has one or has refused the probe.
    lifelines_.erase(std::remove_if(lifelines_.begin(), lifelines_.end(),
                                    [](PeerLifeline& each) {
                                      return each.Look() != PeerLifeline::State::kHeld;
                                    }),
                     lifelines_.end());
    lifelines_.push_back(std::move(lifeline.line));
  }
  std::vector<int> descriptors;
  if (fd.valid()) descriptors.push_back(fd.get());
  descriptors.push_back(lifeline.to_send.get());
  return control_channel_(EncodeCudaIpcProbe(probe), descriptors);
}

absl::Status CudaIpcProber::OnProbed(CudaIpcProbed probed) {
  {
    absl::MutexLock lock(&mu_);
    const auto found = pairs_.find(probed.pair);
    if (found == pairs_.end() || !found->second.has_asked) {
      return absl::InvalidArgumentError("an answer to a probe that was not sent");
    }
    // Reply to an earlier probe, or a repeated reply.
    if (found->second.seed != probed.seed || found->second.phase == Phase::kOpen) {
      return absl::OkStatus();
    }
    // Late, but valid: the pair works.
    if (probed.refusal.empty()) found->second.is_probing = true;
    found->second.has_events =
        found->second.events != nullptr && probed.events_unavailable_reason.empty();
  }
  if (!probed.refusal.empty()) {
    probed.refusal =
        absl::StrCat(Describe(peer_.peer), " cannot open memory of gpu:", probed.pair.source, ": ",
                     probed.refusal);
  }
  Settle(probed.pair, probed.seed, std::move(probed.refusal));
  return absl::OkStatus();
}

void CudaIpcProber::Settle(const GpuPair& pair, uint32_t seed, std::string refusal) {
  std::vector<OpenCallback> waiting;
  std::shared_ptr<Buffer> memory;
  const bool is_open = refusal.empty();
  const absl::Status status = is_open ? absl::OkStatus() : absl::FailedPreconditionError(refusal);
  {
    absl::MutexLock lock(&mu_);
    const auto found = pairs_.find(pair);
    if (found == pairs_.end() || found->second.seed != seed) return;
    Pair& state = found->second;
    if (!std::exchange(state.is_probing, false)) return;
    state.phase = is_open ? Phase::kOpen : Phase::kRefused;
    state.refusal = std::move(refusal);
    state.timeout = std::clamp(2 * state.timeout, kFirstTimeout, kLongestTimeout);
    state.next_probe = SteadyClock().Now() + state.timeout;
    waiting.swap(state.waiting);
    memory = std::move(state.memory);
    // In one step with the phase: the next piece of this segment needs no descriptor.
    if (is_open && state.segment != nullptr) segments_->MarkSent(pair, std::move(state.segment));
  }
  for (OpenCallback& done : waiting) std::move(done)(status);
}

std::string CudaIpcProber::Refusal(const GpuPair& pair) {
  std::string refusal;
  {
    absl::MutexLock lock(&mu_);
    const auto found = pairs_.find(pair);
    if (found == pairs_.end() || found->second.phase != Phase::kRefused) return "";
    refusal = found->second.refusal;
    Pair& state = found->second;
    if (state.is_probing || SteadyClock().Now() < state.next_probe) return refusal;
    state.is_probing = true;
  }
  // The refusal stands until the reply, and tensors use another path.
  environment_.gpus->Use(pair.source, [self = shared_from_this(), pair](absl::StatusOr<Gpu*> gpu) {
    if (!gpu.ok()) return;
    // Not to be lost, or the pair would be refused for good.
    (*gpu)
        ->executor->PostAlways([self, pair, gpu = *gpu] { self->Probe(*gpu, pair); })
        .IgnoreError();
  });
  return refusal;
}

absl::StatusOr<cuda::EventTicket> CudaIpcProber::Record(const GpuPair& pair, cuda::Stream stream) {
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

void CudaIpcProber::ReleaseEvent(const GpuPair& pair, const cuda::EventTicket& ticket) {
  if (ticket.sequence == 0) return;
  absl::MutexLock lock(&mu_);
  const auto found = pairs_.find(pair);
  if (found == pairs_.end() || found->second.events == nullptr) return;
  found->second.events->Release(ticket).IgnoreError();
}

std::vector<PeerLifeline> CudaIpcProber::TakeLifelines() {
  absl::MutexLock lock(&mu_);
  return std::exchange(lifelines_, {});
}

void CudaIpcProber::Abort(const absl::Status& why, DeferredReleaseQueue& grace) {
  auto left = std::make_shared<absl::flat_hash_map<GpuPair, Pair>>();
  std::vector<OpenCallback> waiting;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    left->swap(pairs_);
  }
  for (auto& [pair, state] : *left) {
    for (OpenCallback& each : state.waiting) waiting.push_back(std::move(each));
    state.waiting.clear();
  }
  for (OpenCallback& done : waiting) std::move(done)(why);
  if (!left->empty()) grace.Keep([left = std::move(left)] {});
}

}  // namespace ferry
