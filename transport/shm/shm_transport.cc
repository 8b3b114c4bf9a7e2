// SPDX-License-Identifier: Apache-2.0
// When shared memory can be used, and at what cost.
#include "transport/shm/shm_transport.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "tensor/memory_segment.h"
#include "transport/shm/shm_endpoints.h"

namespace ferry {
namespace {

// Latency of a frame through a ring to a polling reader, until measured.
constexpr absl::Duration kZeroCopyLatency = absl::Microseconds(1);

// The best of several copies that exceed all caches.
double MeasureCopy() {
  constexpr size_t kBytes = size_t{8} << 20;
  std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes, 2);
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const absl::Time start = SteadyClock().Now();
    CopyBytes(to.data(), from.data(), kBytes);
    const double seconds = absl::ToDoubleSeconds(SteadyClock().Now() - start);
    best = std::max(best, static_cast<double>(kBytes) / std::max(seconds, 1e-6));
  }
  return best;
}

}  // namespace

struct ShmTransport::Senders {
  absl::Mutex mu;
  std::vector<std::weak_ptr<ShmSender>> list ABSL_GUARDED_BY(mu);

  std::vector<std::shared_ptr<ShmSender>> Alive() {
    std::vector<std::shared_ptr<ShmSender>> alive;
    absl::MutexLock lock(&mu);
    for (const auto& each : list) {
      if (auto sender = each.lock()) alive.push_back(std::move(sender));
    }
    return alive;
  }
};

ShmTransport::ShmTransport(TransportEnvironment environment)
    : Transport(kInfo),
      environment_(std::move(environment)),
      support_(MemorySegment::CheckSupport()),
      copy_bytes_per_second_(MeasureCopy()),
      senders_(std::make_shared<Senders>()),
      segments_(environment_.arena->Listen({.on_new =
                                                [senders = senders_](const ArenaOffset& at) {
                                                  for (const auto& sender : senders->Alive())
                                                    sender->OnNewSegment(at);
                                                },
                                            .on_retired =
                                                [senders = senders_](uint32_t segment) {
                                                  for (const auto& sender : senders->Alive())
                                                    sender->Retire(segment);
                                                }})) {}

absl::StatusOr<PathCost> ShmTransport::Cost(const PathQuery& query) const {
  const Endpoint& a = *query.source;
  const Endpoint& b = *query.destination;
  if (a.boot_id.empty() || b.boot_id.empty()) {
    return absl::UnavailableError("it is not known which machine each is on (no boot id)");
  }
  if (a.boot_id != b.boot_id) {
    return absl::UnavailableError(
        absl::StrCat("they are on two machines, ", a.host_name, " and ", b.host_name));
  }
  if (!support_.ok()) return support_;
  if (!query.channel_passes_descriptors) {
    return absl::UnavailableError(absl::StrCat("descriptors cannot be passed between them: ",
                                               query.descriptors_unavailable_reason.empty()
                                                   ? "they have no Unix socket"
                                                   : query.descriptors_unavailable_reason));
  }
  PathCost cost = {kZeroCopyLatency, kNoCopy};
  if (!query.is_in_arena) {
    cost.bytes_per_second = copy_bytes_per_second_;
    cost.bandwidth_basis = CostBasis::kAtStart;
  }
  return cost;
}

std::shared_ptr<TransportSender> ShmTransport::CreateSender(const Endpoint& peer) {
  auto sender = std::make_shared<ShmSender>(environment_);
  absl::MutexLock lock(&senders_->mu);
  std::erase_if(senders_->list, [](const auto& each) { return each.expired(); });
  senders_->list.push_back(sender);
  return sender;
}

std::shared_ptr<TransportReceiver> ShmTransport::CreateReceiver(const Endpoint& peer,
                                                                ReleaseCallback release) {
  return std::make_shared<ShmReceiver>(environment_, std::move(release));
}

}  // namespace ferry
