// SPDX-License-Identifier: Apache-2.0
// PathCostEstimator: what transfers between two processes have really taken; costs follow.
#ifndef FERRY_TRANSPORT_PATH_COST_ESTIMATOR_H_
#define FERRY_TRANSPORT_PATH_COST_ESTIMATOR_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "base/spin_lock.h"
#include "transport/transport.h"

namespace ferry {

// A positive number that is measured now and then, and assumed before. Bad news counts a quarter,
// and as eight times worse at most: one transfer that stalls makes no path ugly. Good news counts
// half. What has not been measured for long is forgotten, by and by, in favour of what was assumed:
// a path that is not taken any more, and so not measured, gets another chance. A value.
class SmoothedMeasure final {
 public:
  // How long a measurement counts fully, and in which time its weight halves after that.
  static constexpr absl::Duration kFresh = absl::Seconds(10);
  static constexpr absl::Duration kHalfLife = absl::Seconds(30);
  // What is left of it counts no more below this.
  static constexpr double kLeastWeight = 1.0 / 32;

  enum class Better { kLess, kMore };
  explicit SmoothedMeasure(Better better) : better_(better) {}

  // `assumed`: what there was before anything was measured.
  void See(double measured, double assumed, absl::Time now);
  // How much it counts, from 0 to 1. 0: nothing was measured, or it is forgotten.
  double Weight(absl::Time now) const;
  double Value(double assumed, absl::Time now) const;
  // Since the last one.
  absl::Duration Age(absl::Time now) const;

 private:
  Better better_;
  // 0: none yet.
  double value_ = 0;
  absl::Time at_ = absl::InfinitePast();
};

// Of one direction between two processes, as one of them sees it. Thread-safe. Nothing reads a
// clock: whoever measures does.
class PathCostEstimator final {
 public:
  // From here on a transfer says something of bandwidth, below of latency.
  static constexpr size_t kMinBandwidthSampleBytes = size_t{1} << 20;
  // Between two smaller transfers that are measured.
  static constexpr absl::Duration kSamplePause = absl::Milliseconds(50);

  // `count`: of transports in the list.
  explicit PathCostEstimator(size_t count) : paths_(count) {}

  // Puts what was seen into `cost`, which is what transport number `index` says by itself.
  // `latency_is_control_rtt`: its latency is the control channel's, unless it is known better. No
  // other's is less than that: a busy peer is slow by any path.
  void Apply(size_t index, bool latency_is_control_rtt, absl::Time now, PathCost& cost) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Whether a transfer of `bytes` that begins now is to be measured: large ones are, and of small
  // ones one now and then.
  bool WantsSample(size_t index, size_t bytes, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // From the offer to word that all of it is there, which comes by the control channel.
  void SawTransfer(size_t index, size_t bytes, absl::Duration taken, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What moving that many bytes took, without what comes before and after.
  void SawBytes(size_t index, size_t bytes, absl::Duration taken, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One way of a control channel's shortest message.
  void SawLane(absl::Duration one_way, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Path {
    // In seconds, and bytes per second.
    SmoothedMeasure latency{SmoothedMeasure::Better::kLess};
    SmoothedMeasure bandwidth{SmoothedMeasure::Better::kMore};
    // What the transport says, when it was asked last. 0: never.
    double assumed_latency = 0;
    double assumed_bandwidth = 0;
    absl::Time next_sample = absl::InfinitePast();
  };

  mutable SpinLock mu_;
  mutable std::vector<Path> paths_ ABSL_GUARDED_BY(mu_);
  SmoothedMeasure channel_ ABSL_GUARDED_BY(mu_){SmoothedMeasure::Better::kLess};
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_PATH_COST_ESTIMATOR_H_
