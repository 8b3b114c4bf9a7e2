// SPDX-License-Identifier: Apache-2.0
// Which pairs of devices work, as far as known, and at what cost.
#include "transport/cuda_ipc/cuda_ipc_transport.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "net/event_loop.h"
#include "transport/gpu_of.h"

namespace ferry {
namespace {

// A transfer descriptor, and an event recorded and waited for on the devices.
constexpr absl::Duration kLatency = absl::Microseconds(10);
// For memory mapped in place.
constexpr double kMappedBytesPerSecond = 1e12;
// Between two GPUs, until measured: less than NVLink, as much as PCIe.
constexpr double kAssumedBytesPerSecond = 20e9;
constexpr absl::Duration kShortestIdleCheck = absl::Milliseconds(10);

std::string NoteOf(bool is_same_gpu, bool is_in_arena, const std::string& last) {
  return absl::StrCat(
      is_same_gpu ? "a view, since it is the same GPU" : "a copy, since it is another GPU",
      is_in_arena ? "" : ", unless its memory cannot be mapped, or is not worth it",
      last.empty() ? "" : "; the last one was ", last);
}

}  // namespace

CudaIpcTransport::CudaIpcTransport(TransportEnvironment environment)
    : Transport(kInfo),
      environment_(std::move(environment)),
      grace_(std::make_shared<DeferredReleaseQueue>(*environment_.loop)) {
  absl::MutexLock lock(&link_->mu);
  link_->gpus = environment_.gpus;
}

CudaIpcTransport::~CudaIpcTransport() {
  // Views released from now on notify no producer.
  absl::MutexLock lock(&link_->mu);
  link_->gpus = nullptr;
}

absl::StatusOr<PathCost> CudaIpcTransport::Cost(const PathQuery& query) const {
  FERRY_ASSIGN_OR_RETURN(const std::string from, GpuOf(*query.source, query.source_location, "in"));
  FERRY_ASSIGN_OR_RETURN(const std::string to,
                         GpuOf(*query.destination, query.destination_location, "for"));
  const Endpoint& a = *query.source;
  const Endpoint& b = *query.destination;
  if (a.boot_id.empty() || b.boot_id.empty()) {
    return absl::FailedPreconditionError("it is not known which machine each is on (no boot id)");
  }
  if (a.boot_id != b.boot_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("they are on two machines, ", a.host_name, " and ", b.host_name));
  }
  if (!query.channel_passes_descriptors) {
    return absl::FailedPreconditionError(absl::StrCat("descriptors cannot be passed between them: ",
                                                      query.descriptors_unavailable_reason.empty()
                                                          ? "they have no Unix socket"
                                                          : query.descriptors_unavailable_reason));
  }
  std::shared_ptr<CudaIpcSender> sender;
  std::shared_ptr<CudaIpcReceiver> receiver;
  {
    absl::MutexLock lock(&mu_);
    const auto found = senders_.find({b.peer.node_id, b.peer.incarnation});
    if (found != senders_.end()) sender = found->second.lock();
    const auto in = receivers_.find(a.peer.incarnation);
    if (in != receivers_.end() && b.peer.incarnation == environment_.incarnation) {
      receiver = in->second.lock();
    }
  }
  const GpuPair pair = {static_cast<uint16_t>(query.source_location.ordinal),
                        static_cast<uint16_t>(query.destination_location.ordinal)};
  if (sender != nullptr) {
    const std::string refusal = sender->Refusal(pair);
    if (!refusal.empty()) return absl::FailedPreconditionError(refusal);
  }
  PathCost cost = {kLatency, from == to ? kMappedBytesPerSecond : kAssumedBytesPerSecond};
  // In the receiver's report only: building a note for every transfer would cost too much.
  if (receiver != nullptr)
    cost.note = NoteOf(from == to, query.is_in_arena, receiver->LastOf(pair));
  return cost;
}

std::shared_ptr<TransportSender> CudaIpcTransport::CreateSender(const Endpoint& peer) {
  auto sender = std::make_shared<CudaIpcSender>(environment_, peer, grace_);
  absl::MutexLock lock(&mu_);
  absl::erase_if(senders_, [](const auto& each) { return each.second.expired(); });
  senders_[{peer.peer.node_id, peer.peer.incarnation}] = sender;
  return sender;
}

std::shared_ptr<TransportReceiver> CudaIpcTransport::CreateReceiver(const Endpoint& peer,
                                                                    ReleaseCallback release) {
  const uint64_t incarnation = peer.peer.incarnation;
  auto receiver = std::make_shared<CudaIpcReceiver>(
      environment_, peer, [this](Gpu& gpu) -> cuda::IpcImportCache& { return CacheOf(gpu); },
      [this, incarnation] { ClosePeer(incarnation); }, link_, std::move(release));
  absl::MutexLock lock(&mu_);
  absl::erase_if(receivers_, [](const auto& each) { return each.second.expired(); });
  receivers_[incarnation] = receiver;
  return receiver;
}

void CudaIpcTransport::ClosePeer(uint64_t incarnation) {
  std::vector<cuda::IpcImportCache*> caches;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [ordinal, cache] : caches_) caches.push_back(cache.get());
  }
  for (cuda::IpcImportCache* cache : caches) cache->ClosePeer(incarnation);
}

void CudaIpcTransport::CloseIdle() {
  std::vector<cuda::IpcImportCache*> caches;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [ordinal, cache] : caches_) caches.push_back(cache.get());
  }
  for (cuda::IpcImportCache* cache : caches) cache->CloseIdle();
  const absl::Duration timeout = environment_.gpus->options().ipc_idle_timeout;
  environment_.loop->PostAt(SteadyClock().Now() + std::max(timeout / 4, kShortestIdleCheck),
                            [this, link = link_] {
                              absl::ReaderMutexLock lock(&link->mu);
                              if (link->gpus != nullptr) CloseIdle();
                            });
}

cuda::IpcImportCache& CudaIpcTransport::CacheOf(Gpu& gpu) {
  absl::MutexLock lock(&mu_);
  auto& cache = caches_[gpu.device->ordinal()];
  if (cache == nullptr) {
    const GpusOptions& options = environment_.gpus->options();
    cache = std::make_unique<cuda::IpcImportCache>(
        *gpu.side, environment_.gpus->gate(),
        cuda::IpcImportCacheOptions{.own_incarnation = environment_.incarnation,
                                    .cap_bytes = options.ipc_cache_bytes,
                                    .idle_timeout = options.ipc_idle_timeout});
    const bool is_timed = options.ipc_idle_timeout > absl::ZeroDuration() &&
                          options.ipc_idle_timeout < absl::InfiniteDuration();
    if (is_timed && !std::exchange(is_closing_idle_, true)) {
      environment_.loop->Post([this, link = link_] {
        absl::ReaderMutexLock lock(&link->mu);
        if (link->gpus != nullptr) CloseIdle();
      });
    }
  }
  return *cache;
}

}  // namespace ferry
