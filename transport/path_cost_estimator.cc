// SPDX-License-Identifier: Apache-2.0
// Smoothing on a logarithmic scale: twice and half are equally far away.
#include "transport/path_cost_estimator.h"

#include <algorithm>
#include <cmath>

namespace ferry {
namespace {

constexpr double kBadNewsWeight = 0.25;
constexpr double kGoodNewsWeight = 0.5;
// Limit on the effect of one measurement.
constexpr double kMostWorse = 8;
constexpr double kMostBetter = 64;
// Values outside these bounds are measurement errors, or do not matter.
constexpr double kLeastLatency = 1e-8;
constexpr double kMostLatency = 1;
constexpr double kLeastBandwidth = 1e6;
constexpr double kMostBandwidth = kNoCopy / 2;
// Minimum share of a transfer's time that is attributed to bandwidth.
constexpr double kLeastShare = 0.25;

double Latency(double seconds) { return std::clamp(seconds, kLeastLatency, kMostLatency); }
double Bandwidth(double rate) { return std::clamp(rate, kLeastBandwidth, kMostBandwidth); }

}  // namespace

void SmoothedMeasure::Record(double measured, double assumed, absl::Time now) {
  const double before = Value(assumed, now);
  double ratio = measured / before;
  const bool is_better = better_ == Better::kMore ? ratio > 1 : ratio < 1;
  const double most = is_better ? kMostBetter : kMostWorse;
  ratio = std::clamp(ratio, 1 / most, most);
  value_ = before * std::pow(ratio, is_better ? kGoodNewsWeight : kBadNewsWeight);
  at_ = now;
}

double SmoothedMeasure::Weight(absl::Time now) const {
  if (value_ <= 0) return 0;
  const absl::Duration stale = Age(now) - kFresh;
  if (stale <= absl::ZeroDuration()) return 1;
  const double weight = std::exp2(-absl::FDivDuration(stale, kHalfLife));
  return weight < kLeastWeight ? 0 : weight;
}

double SmoothedMeasure::Value(double assumed, absl::Time now) const {
  const double weight = Weight(now);
  if (weight <= 0) return assumed;
  return weight >= 1 ? value_ : assumed * std::pow(value_ / assumed, weight);
}

absl::Duration SmoothedMeasure::Age(absl::Time now) const {
  return std::max(now - at_, absl::ZeroDuration());
}

void PathCostEstimator::Apply(size_t index, bool has_control_channel_latency, absl::Time now,
                              PathCost& cost) const {
  SpinLockHolder lock(&mu_);
  if (index >= paths_.size()) return;
  Path& path = paths_[index];
  const bool is_channel_known = channel_.Weight(now) > 0;
  const absl::Duration channel =
      is_channel_known ? absl::Seconds(channel_.Value(absl::ToDoubleSeconds(cost.latency), now))
                       : absl::ZeroDuration();
  const absl::Duration channel_age = channel_.Age(now);
  const auto use_channel = [&cost, channel, channel_age] {
    cost.latency = channel;
    cost.latency_basis = CostBasis::kMeasured;
    cost.latency_age = channel_age;
  };
  // The transfer descriptor travels over the control channel, whatever the transport.
  if (is_channel_known && (has_control_channel_latency || channel > cost.latency)) use_channel();
  path.assumed_latency = absl::ToDoubleSeconds(cost.latency);
  if (path.latency.Weight(now) > 0) {
    cost.latency = absl::Seconds(path.latency.Value(path.assumed_latency, now));
    cost.latency_basis = CostBasis::kMeasured;
    cost.latency_age = path.latency.Age(now);
  }
  // A temporarily slow control channel must not make a path that was measured before look faster
  // than others.
  if (channel > cost.latency) use_channel();
  // Zero-copy: no bandwidth to measure.
  if (cost.bytes_per_second >= kNoCopy) return;
  path.assumed_bandwidth = cost.bytes_per_second;
  if (path.bandwidth.Weight(now) > 0) {
    cost.bytes_per_second = path.bandwidth.Value(path.assumed_bandwidth, now);
    cost.bandwidth_basis = CostBasis::kMeasured;
    cost.bandwidth_age = path.bandwidth.Age(now);
  }
}

bool PathCostEstimator::WantsSample(size_t index, size_t bytes, absl::Time now) {
  if (bytes >= kMinBandwidthSampleBytes) return true;
  SpinLockHolder lock(&mu_);
  if (index >= paths_.size() || now < paths_[index].next_sample) return false;
  paths_[index].next_sample = now + kSamplePause;
  return true;
}

void PathCostEstimator::RecordTransfer(size_t index, size_t bytes, absl::Duration taken,
                                       absl::Time now) {
  const double seconds = absl::ToDoubleSeconds(taken);
  if (seconds <= 0) return;
  SpinLockHolder lock(&mu_);
  if (index >= paths_.size() || paths_[index].assumed_bandwidth <= 0) return;
  Path& path = paths_[index];
  const double latency = path.latency.Value(path.assumed_latency, now);
  const double bandwidth = path.bandwidth.Value(path.assumed_bandwidth, now);
  const double rest = seconds - static_cast<double>(bytes) / bandwidth;
  // Also for a smaller transfer that was about as fast as its bytes alone, or faster: the bandwidth
  // is higher than estimated, and no time is left to attribute to latency.
  if (bytes >= kMinBandwidthSampleBytes || rest < kLeastShare * seconds) {
    // Round trip.
    const double moving = std::max(seconds - 2 * latency, kLeastShare * seconds);
    path.bandwidth.Record(Bandwidth(static_cast<double>(bytes) / moving), path.assumed_bandwidth,
                          now);
  } else {
    path.latency.Record(Latency(rest / 2), path.assumed_latency, now);
  }
}

void PathCostEstimator::RecordBandwidth(size_t index, size_t bytes, absl::Duration taken,
                                        absl::Time now) {
  const double seconds = absl::ToDoubleSeconds(taken);
  if (seconds <= 0 || bytes < kMinBandwidthSampleBytes) return;
  SpinLockHolder lock(&mu_);
  if (index >= paths_.size()) return;
  Path& path = paths_[index];
  const double rate = Bandwidth(static_cast<double>(bytes) / seconds);
  path.bandwidth.Record(rate, path.assumed_bandwidth > 0 ? path.assumed_bandwidth : rate, now);
}

void PathCostEstimator::RecordControlLatency(absl::Duration one_way, absl::Time now) {
  const double seconds = Latency(absl::ToDoubleSeconds(one_way));
  SpinLockHolder lock(&mu_);
  // No assumption: the first measurement counts fully, and so does one after a long pause.
  channel_.Record(seconds, seconds, now);
}

}  // namespace ferry
