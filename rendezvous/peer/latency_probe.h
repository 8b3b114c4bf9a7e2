// SPDX-License-Identifier: Apache-2.0
// LatencyProbe: measures a control channel's message latency from time to time.
#ifndef FERRY_RENDEZVOUS_PEER_LATENCY_PROBE_H_
#define FERRY_RENDEZVOUS_PEER_LATENCY_PROBE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/spin_lock.h"
#include "transport/control/control_channel.h"
#include "transport/path_cost_estimator.h"

namespace ferry {

// A round is a few consecutive PINGs, of which the fastest counts: the first may have had to wake
// the peer. One per end of a control channel. Thread-safe.
class LatencyProbe final {
 public:
  // Minimum interval between rounds; a round is started only when a transport sends something.
  static constexpr absl::Duration kPause = absl::Seconds(2);
  static constexpr int kPings = 4;
  // A round is considered lost after this time: a peer whose queue was full has skipped the answer.
  static constexpr absl::Duration kGivenUp = absl::Minutes(2);
  // Ids from here on are not the probe's (TensorResponder::StartFlush).
  static constexpr uint64_t kForeignIds = uint64_t{1} << 63;

  // `count`: number of transports. The clock must outlive it.
  LatencyProbe(const Clock& clock, size_t count)
      : clock_(clock), costs_(std::make_shared<PathCostEstimator>(count)) {}

  // Costs from here to the peer.
  const std::shared_ptr<PathCostEstimator>& costs() const { return costs_; }
  // Costs from the peer to here, whose latency is the same. Call before the first round.
  void set_incoming(std::shared_ptr<PathCostEstimator> incoming) {
    incoming_ = std::move(incoming);
  }

  // Starts a round if none is pending, or it is lost, and the last one started long enough ago.
  // `now` may be coarse.
  void Refresh(ControlChannel& channel, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: INVALID_ARGUMENT for a PONG without a PING.
  absl::Status OnPong(ControlChannel& channel, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Ping(ControlChannel& channel, uint64_t id);

  const Clock& clock_;
  const std::shared_ptr<PathCostEstimator> costs_;
  // Null: not reported.
  std::shared_ptr<PathCostEstimator> incoming_;
  SpinLock mu_;
  // Id of the pending PING, or of the last one.
  uint64_t id_ ABSL_GUARDED_BY(mu_) = 0;
  // Last id of a lost round; late answers up to this one are ignored.
  uint64_t lost_ ABSL_GUARDED_BY(mu_) = 0;
  // PINGs left in the round, including the pending one; 0: no round.
  int left_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time sent_ ABSL_GUARDED_BY(mu_);
  absl::Duration best_ ABSL_GUARDED_BY(mu_);
  absl::Time next_round_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_LATENCY_PROBE_H_
