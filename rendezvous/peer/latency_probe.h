// SPDX-License-Identifier: Apache-2.0
// LatencyProbe: measures how long a control channel's messages take, now and then.
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

// A round is a few PINGs one after the other, of which the fastest counts: the first may have had
// to wake somebody. One end of a control channel has one. Thread-safe.
class LatencyProbe final {
 public:
  // Between two rounds; nobody asks for one unless something is sent by a transport.
  static constexpr absl::Duration kPause = absl::Seconds(2);
  static constexpr int kPings = 4;
  // After which a round counts as lost: a peer whose queue was full has left out the answer.
  static constexpr absl::Duration kGivenUp = absl::Minutes(2);
  // Ids from here on are of others than this (TensorResponder::StartFlush).
  static constexpr uint64_t kForeignIds = uint64_t{1} << 63;

  // `count`: of transports. The clock outlives it.
  LatencyProbe(const Clock& clock, size_t count)
      : clock_(clock), costs_(std::make_shared<PathCostEstimator>(count)) {}

  // Of what goes from here to the peer.
  const std::shared_ptr<PathCostEstimator>& costs() const { return costs_; }
  // Of what comes from there, which take as long. Before the first round.
  void set_incoming(std::shared_ptr<PathCostEstimator> incoming) {
    incoming_ = std::move(incoming);
  }

  // Begins a round if none is under way, or it is lost, and the last began long enough ago. `now`
  // may be coarse.
  void Refresh(ControlChannel& channel, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: INVALID_ARGUMENT for an answer to what was not asked.
  absl::Status OnPong(ControlChannel& channel, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Ping(ControlChannel& channel, uint64_t id);

  const Clock& clock_;
  const std::shared_ptr<PathCostEstimator> costs_;
  // Null: nobody is told.
  std::shared_ptr<PathCostEstimator> incoming_;
  SpinLock mu_;
  // Of the one that is under way, or the last.
  uint64_t id_ ABSL_GUARDED_BY(mu_) = 0;
  // The last of a round that was given up; what is answered late, up to there, says nothing.
  uint64_t lost_ ABSL_GUARDED_BY(mu_) = 0;
  // To come, with the one that is under way; 0: no round is.
  int left_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time sent_ ABSL_GUARDED_BY(mu_);
  absl::Duration best_ ABSL_GUARDED_BY(mu_);
  absl::Time next_round_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_LATENCY_PROBE_H_
