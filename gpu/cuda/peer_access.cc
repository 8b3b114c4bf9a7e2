// SPDX-License-Identifier: Apache-2.0
// PeerAccess: the state of each pair.
#include "gpu/cuda/peer_access.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/logging.h"

namespace ferry::cuda {
namespace {

// The copy can do without, and the executor serves others.
constexpr absl::Duration kMostForQuiet = absl::Milliseconds(5);

}  // namespace

PeerAccess::PeerAccess(std::shared_ptr<SyncGate> gate, PeerMatrix peers, absl::Duration retry)
    : gate_(std::move(gate)), peers_(std::move(peers)), retry_(retry) {
  const auto count = static_cast<size_t>(peers_.device_count());
  absl::MutexLock lock(&mu_);
  pairs_.resize(count * count);
}

size_t PeerAccess::IndexOf(const CudaDevice& one, const CudaDevice& other) const {
  const int low = std::min(one.ordinal(), other.ordinal());
  const int high = std::max(one.ordinal(), other.ordinal());
  return static_cast<size_t>(low) * static_cast<size_t>(peers_.device_count()) +
         static_cast<size_t>(high);
}

absl::Status PeerAccess::EnableOneWay(const CudaDevice& from, const CudaDevice& to) const {
  if (!peers_.CanAccess(from.ordinal(), to.ordinal())) return absl::OkStatus();
  return EnablePeerAccess(from, to);
}

void PeerAccess::Enable(const CudaDevice& one, const CudaDevice& other) {
  const size_t index = IndexOf(one, other);
  {
    absl::MutexLock lock(&mu_);
    const Pair& pair = pairs_[index];
    if (pair.is_settled || SteadyClock().Now() < pair.retry_at) return;
  }
  // Another thread may do the same for the pair at this time: the driver takes it twice, and each
  // caller's copy follows its own call.
  absl::Status status;
  const absl::Status quiet = gate_->RunQuiesced(kMostForQuiet, "enable peer access", [&] {
    status.Update(EnableOneWay(one, other));
    status.Update(EnableOneWay(other, one));
  });
  absl::MutexLock lock(&mu_);
  Pair& pair = pairs_[index];
  if (!quiet.ok()) {
    pair.retry_at = SteadyClock().Now() + retry_;
    return;
  }
  if (!std::exchange(pair.is_settled, true) && !status.ok()) {
    FERRY_LOG_WARN(kGpu,
                   "peer access not enabled: copies between {} and {} may go through host memory: "
                   "{}",
                   one.name(), other.name(), status);
  }
}

}  // namespace ferry::cuda
