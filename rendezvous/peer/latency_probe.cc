// SPDX-License-Identifier: Apache-2.0
// Sends PINGs one at a time.
#include "rendezvous/peer/latency_probe.h"

#include <algorithm>

#include "rendezvous/peer/peer_protocol.h"

namespace ferry {

void LatencyProbe::Refresh(ControlChannel& channel, absl::Time now) {
  uint64_t id = 0;
  {
    SpinLockHolder lock(&mu_);
    if (now < next_round_) return;
    if (left_ > 0) {
      if (now - sent_ < kGivenUp) return;
      lost_ = id_;
    }
    next_round_ = now + kPause;
    left_ = kPings;
    best_ = absl::InfiniteDuration();
    id = ++id_;
  }
  Ping(channel, id);
}

void LatencyProbe::Ping(ControlChannel& channel, uint64_t id) {
  {
    SpinLockHolder lock(&mu_);
    sent_ = clock_.Now();
  }
  if (SendId(channel, PeerMessageType::kPing, id).ok()) return;
  // Not sent, so not measured until the next round; regular senders will notice the error.
  SpinLockHolder lock(&mu_);
  if (id_ == id) left_ = 0;
}

absl::Status LatencyProbe::OnPong(ControlChannel& channel, uint64_t id) {
  {
    SpinLockHolder lock(&mu_);
    if (id != 0 && id <= lost_) return absl::OkStatus();
    if (left_ == 0 || id != id_) return absl::InvalidArgumentError("a PONG to no PING");
    const absl::Time now = clock_.Now();
    best_ = std::min(best_, now - sent_);
    if (--left_ > 0) {
      id = ++id_;
    } else {
      costs_->RecordControlLatency(best_ / 2, now);
      if (incoming_ != nullptr) incoming_->RecordControlLatency(best_ / 2, now);
      return absl::OkStatus();
    }
  }
  Ping(channel, id);
  return absl::OkStatus();
}

}  // namespace ferry
