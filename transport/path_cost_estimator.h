// SPDX-License-Identifier: Apache-2.0
// PathCostEstimator: measured costs of transfers between two processes.
#ifndef FERRY_TRANSPORT_PATH_COST_ESTIMATOR_H_
#define FERRY_TRANSPORT_PATH_COST_ESTIMATOR_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "base/spin_lock.h"
#include "transport/transport.h"

namespace ferry {

// A positive number that is measured occasionally, and assumed before. A worse measurement has a
// weight of a quarter, and counts as at most eight times worse, so that one stalled transfer does
// not rule out a path. A better one has a weight of half. Old measurements decay towards the
// assumed value, so that a path that is no longer used, and so no longer measured, is tried again.
// A value.
class SmoothedMeasure final {
 public:
  // How long a measurement counts fully, and its half-life after that.
  static constexpr absl::Duration kFresh = absl::Seconds(10);
  static constexpr absl::Duration kHalfLife = absl::Seconds(30);
  // Below this weight the remainder is ignored.
  static constexpr double kLeastWeight = 1.0 / 32;

  enum class Better { kLess, kMore };
  explicit SmoothedMeasure(Better better) : better_(better) {}

  // `assumed`: the value before any measurement.
  void Record(double measured, double assumed, absl::Time now);
  // Weight of the measurements, from 0 to 1. 0: none, or decayed.
  double Weight(absl::Time now) const;
  double Value(double assumed, absl::Time now) const;
  // Time since the last measurement.
  absl::Duration Age(absl::Time now) const;

 private:
  Better better_;
  // 0: no measurement yet.
  double value_ = 0;
  absl::Time at_ = absl::InfinitePast();
};

// For one direction between two processes, as seen by one of them. Thread-safe. Never reads a
// clock: callers pass the time.
class PathCostEstimator final {
 public:
  // Transfers of at least this size measure bandwidth, smaller ones latency.
  static constexpr size_t kMinBandwidthSampleBytes = size_t{1} << 20;
  // Minimum interval between measurements of smaller transfers.
  static constexpr absl::Duration kSamplePause = absl::Milliseconds(50);

  // `count`: number of transports in the list.
  explicit PathCostEstimator(size_t count) : paths_(count) {}

  // Merges measurements into `cost`, which holds the estimate of transport number `index`.
  // `has_control_channel_latency`: its latency is the control channel's, unless measured. No path's
  // latency is below the control channel's: a busy peer is slow over any path.
  void Apply(size_t index, bool has_control_channel_latency, absl::Time now, PathCost& cost) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // True if a transfer of `bytes` that begins now should be measured: all large ones, and a small
  // one now and then.
  bool WantsSample(size_t index, size_t bytes, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Time from Expose until the acknowledgement of all bytes, which arrives over the control
  // channel.
  void RecordTransfer(size_t index, size_t bytes, absl::Duration taken, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Time of moving that many bytes, without what precedes and follows.
  void RecordBandwidth(size_t index, size_t bytes, absl::Duration taken, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One-way time of the control channel's shortest message.
  void RecordControlLatency(absl::Duration one_way, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Path {
    // In seconds, and in bytes per second.
    SmoothedMeasure latency{SmoothedMeasure::Better::kLess};
    SmoothedMeasure bandwidth{SmoothedMeasure::Better::kMore};
    // The transport's estimate when last asked. 0: never.
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
