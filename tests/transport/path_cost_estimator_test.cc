// SPDX-License-Identifier: Apache-2.0
// Measured transfers, and their effect on the choice of a path.
#include "transport/path_cost_estimator.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "transport/transports.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

double InGb(const PathCost& cost) { return cost.bytes_per_second / 1e9; }

class PathCostEstimatorTest : public ::testing::Test {
 protected:
  // The cost of transport 0, with an assumed cost of 50 us and 1 GB/s.
  PathCost Cost(bool has_control_channel_latency = false) const {
    PathCost cost = {absl::Microseconds(50), 1e9};
    costs_.Apply(0, has_control_channel_latency, clock_.Now(), cost);
    return cost;
  }
  // A transfer of 1 MB at that rate.
  void Transfer(double gigabytes_per_s) {
    Cost();
    costs_.RecordBandwidth(0, 2 * kMiB, absl::Seconds(2.0 * kMiB / (gigabytes_per_s * 1e9)),
                           clock_.Now());
  }

  FakeClock clock_;
  PathCostEstimator costs_{2};
};

TEST_F(PathCostEstimatorTest, WithoutMeasurements_UsesTheTransportsAssumption) {
  const PathCost cost = Cost(/*has_control_channel_latency=*/true);
  EXPECT_EQ(cost.latency, absl::Microseconds(50));
  EXPECT_EQ(cost.bytes_per_second, 1e9);
  EXPECT_EQ(cost.latency_basis, CostBasis::kAssumed);
  EXPECT_EQ(cost.bandwidth_basis, CostBasis::kAssumed);
}

TEST_F(PathCostEstimatorTest, FollowsMeasuredTransfers) {
  for (int i = 0; i < 20; ++i) Transfer(4);
  EXPECT_NEAR(InGb(Cost()), 4, 0.1);
  for (int i = 0; i < 40; ++i) Transfer(0.2);
  EXPECT_NEAR(InGb(Cost()), 0.2, 0.02);
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(Cost().bandwidth_basis, CostBasis::kMeasured);
  EXPECT_EQ(Cost().bandwidth_age, absl::Seconds(3));
  // The other transport has not been measured.
  PathCost other = {absl::Microseconds(50), 1e9};
  costs_.Apply(1, false, clock_.Now(), other);
  EXPECT_EQ(other.bandwidth_basis, CostBasis::kAssumed);
}

TEST_F(PathCostEstimatorTest, OneStalledTransfer_HasLittleEffect) {
  for (int i = 0; i < 20; ++i) Transfer(4);
  Transfer(1e-6);
  EXPECT_GT(InGb(Cost()), 2);
  Transfer(4);
  Transfer(4);
  EXPECT_GT(InGb(Cost()), 3);
}

TEST_F(PathCostEstimatorTest, FirstMeasurement_IsNoException) {
  Transfer(1e-6);
  EXPECT_GT(InGb(Cost()), 0.5);
}

TEST_F(PathCostEstimatorTest, OldMeasurements_AreForgotten) {
  for (int i = 0; i < 100; ++i) Transfer(0.01);
  EXPECT_NEAR(InGb(Cost()), 0.01, 0.001);
  clock_.Advance(absl::Seconds(10));
  EXPECT_NEAR(InGb(Cost()), 0.01, 0.001);
  clock_.Advance(absl::Seconds(30));
  EXPECT_NEAR(InGb(Cost()), 0.1, 0.01);
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(InGb(Cost()), 1);
  EXPECT_EQ(Cost().bandwidth_basis, CostBasis::kAssumed);
}

TEST_F(PathCostEstimatorTest, SmallTransfersMeasureLatencyAndLargeOnesBandwidth) {
  for (int i = 0; i < 30; ++i) {
    Cost();
    costs_.RecordTransfer(0, 1000, absl::Microseconds(20) + absl::Microseconds(1), clock_.Now());
    costs_.RecordTransfer(0, 4 * kMiB, absl::Microseconds(20) + absl::Seconds(4.0 * kMiB / 2e9),
                          clock_.Now());
  }
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost().latency), 10, 0.5);
  EXPECT_NEAR(InGb(Cost()), 2, 0.05);
}

// Nearly all of the time is spent on bytes, at a higher rate than assumed.
TEST_F(PathCostEstimatorTest, LargerTransfers_DoNotReduceLatencyToZero) {
  for (int i = 0; i < 30; ++i) {
    Cost();
    costs_.RecordTransfer(0, 900'000, absl::Microseconds(100) + absl::Seconds(900'000 / 4e9),
                          clock_.Now());
  }
  EXPECT_GT(Cost().latency, absl::Microseconds(20));
  EXPECT_NEAR(InGb(Cost()), 4, 0.5);
}

TEST_F(PathCostEstimatorTest, SmallTransfers_AreSampled) {
  EXPECT_TRUE(costs_.WantsSample(0, 1000, clock_.Now()));
  EXPECT_FALSE(costs_.WantsSample(0, 1000, clock_.Now()));
  EXPECT_TRUE(costs_.WantsSample(1, 1000, clock_.Now()));
  EXPECT_TRUE(costs_.WantsSample(0, kMiB, clock_.Now()));
  clock_.Advance(PathCostEstimator::kSamplePause);
  EXPECT_TRUE(costs_.WantsSample(0, 1000, clock_.Now()));
}

TEST_F(PathCostEstimatorTest, ChannelLatency_AppliesToTransportsThatAreAsFast) {
  costs_.RecordControlLatency(absl::Microseconds(3), clock_.Now());
  EXPECT_EQ(Cost(/*has_control_channel_latency=*/true).latency, absl::Microseconds(3));
  EXPECT_EQ(Cost(/*has_control_channel_latency=*/true).latency_basis, CostBasis::kMeasured);
  EXPECT_EQ(Cost(/*has_control_channel_latency=*/false).latency, absl::Microseconds(50));
  // From a peer that was asleep.
  costs_.RecordControlLatency(absl::Milliseconds(500), clock_.Now());
  EXPECT_LT(Cost(true).latency, absl::Microseconds(6));
  costs_.RecordControlLatency(absl::Microseconds(3), clock_.Now());
  costs_.RecordControlLatency(absl::Microseconds(3), clock_.Now());
  EXPECT_LT(Cost(true).latency, absl::Microseconds(4));
}

// A process that was stopped while the control channel was measured for the first time.
TEST_F(PathCostEstimatorTest, AFirstMeasurementOfSecondsFades) {
  costs_.RecordControlLatency(absl::Seconds(20), clock_.Now());
  EXPECT_LE(Cost(true).latency, absl::Seconds(1));
  for (int i = 0; i < 8; ++i) {
    clock_.Advance(absl::Seconds(2));
    costs_.RecordControlLatency(absl::Microseconds(3), clock_.Now());
  }
  EXPECT_LT(Cost(true).latency, absl::Microseconds(6));
  costs_.RecordControlLatency(absl::Seconds(20), clock_.Now());
  clock_.Advance(absl::Minutes(3));
  EXPECT_EQ(Cost(true).latency_basis, CostBasis::kAssumed);
}

TEST_F(PathCostEstimatorTest, WithoutACopy_ThereIsNoBandwidth) {
  for (int i = 0; i < 20; ++i) Transfer(4);
  PathCost cost = {absl::Microseconds(1), kNoCopy};
  costs_.Apply(0, false, clock_.Now(), cost);
  EXPECT_EQ(cost.bytes_per_second, kNoCopy);
}

TEST_F(PathCostEstimatorTest, InvalidMeasurementsAreIgnored) {
  costs_.RecordTransfer(0, kMiB, absl::ZeroDuration(), clock_.Now());
  costs_.RecordTransfer(7, kMiB, absl::Seconds(1), clock_.Now());
  costs_.RecordBandwidth(7, kMiB, absl::Seconds(1), clock_.Now());
  EXPECT_FALSE(costs_.WantsSample(7, 1, clock_.Now()));
  // A clock that goes back.
  Transfer(4);
  clock_.Advance(absl::Seconds(-100));
  EXPECT_GT(InGb(Cost()), 1);
  EXPECT_EQ(Cost().bandwidth_age, absl::ZeroDuration());
}

// Returns the given costs.
class SayingTransport final : public Transport {
 public:
  SayingTransport(absl::string_view name, absl::StatusOr<PathCost> cost,
                  bool has_control_channel_latency = false)
      : Transport({.name = name,
                   .summary = "says what it is told to",
                   .capabilities = {.has_fd_channel_latency = has_control_channel_latency,
                                    .has_plain_channel_latency = has_control_channel_latency}}),
        cost_(std::move(cost)) {}
  absl::StatusOr<PathCost> Cost(const PathQuery&) const override { return cost_; }
  std::shared_ptr<TransportSender> CreateSender(const Endpoint&) override { return nullptr; }
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint&, ReleaseCallback) override {
    return nullptr;
  }

 private:
  const absl::StatusOr<PathCost> cost_;
};

// The path that has become slow is left, and tried again when that is long ago.
TEST(PathChoiceTest, FollowsMeasurementsAndRetriesOtherPaths) {
  FakeClock clock;
  TransportList transports;
  transports.push_back(
      std::make_unique<SayingTransport>("fast", PathCost{absl::Microseconds(10), 4e9}));
  transports.push_back(
      std::make_unique<SayingTransport>("slow", PathCost{absl::Microseconds(50), 1e9}));
  PathCostEstimator costs(transports.size());
  Endpoint ends[2];
  ends[0].peer = {0, 1};
  ends[1].peer = {1, 2};
  PathQuery query = {.source = &ends[0], .destination = &ends[1], .bytes = 16 * kMiB};
  query.estimates = &costs;
  const auto choose = [&] {
    query.now = clock.Now();
    const std::optional<size_t> picked = SelectPath(transports, query, {}, nullptr);
    const absl::StatusOr<PathExplanation> choice = ExplainPath(transports, query, {});
    EXPECT_TRUE(choice.ok());
    EXPECT_EQ(picked, choice->transport);
    return std::string(transports[choice->transport]->name());
  };
  EXPECT_EQ(choose(), "fast");
  for (int i = 0; i < 2; ++i) costs.RecordBandwidth(0, kMiB, absl::Seconds(1), clock.Now());
  EXPECT_EQ(choose(), "fast") << "two that stall are no reason";
  int more = 0;
  while (choose() == "fast" && more < 100) {
    costs.RecordBandwidth(0, kMiB, absl::Seconds(1), clock.Now());
    ++more;
  }
  EXPECT_LT(more, 10);
  clock.Advance(absl::Seconds(9));
  EXPECT_EQ(choose(), "slow");
  clock.Advance(absl::Minutes(3));
  EXPECT_EQ(choose(), "fast");
}

// On a busy peer every path is slow, and not only the one whose latency the control channel
// measures.
TEST(PathChoiceTest, SlowChannel_MakesNoOtherPathTheCheapest) {
  FakeClock clock;
  TransportList transports;
  transports.push_back(std::make_unique<SayingTransport>(
      "shm", PathCost{absl::Microseconds(1), kNoCopy}, /*has_control_channel_latency=*/true));
  transports.push_back(
      std::make_unique<SayingTransport>("tcp", PathCost{absl::Microseconds(8), 8e9}));
  PathCostEstimator costs(transports.size());
  Endpoint ends[2];
  ends[0].peer = {0, 1};
  ends[1].peer = {1, 2};
  PathQuery query = {.source = &ends[0], .destination = &ends[1], .bytes = 64 << 10};
  query.estimates = &costs;
  query.now = clock.Now();
  costs.RecordControlLatency(absl::Milliseconds(2), clock.Now());
  EXPECT_EQ(SelectPath(transports, query, {}, nullptr), 0u);
  const absl::StatusOr<PathExplanation> choice = ExplainPath(transports, query, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->candidates[1].cost->latency, absl::Milliseconds(2));
  EXPECT_EQ(choice->candidates[1].cost->latency_basis, CostBasis::kMeasured);
  // Nor one that has been measured in a better moment.
  for (int i = 0; i < 100; ++i) costs.RecordTransfer(1, 64, absl::Microseconds(16), clock.Now());
  const absl::StatusOr<PathExplanation> again = ExplainPath(transports, query, {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->transport, 0u);
  EXPECT_EQ(again->candidates[1].cost->latency, absl::Milliseconds(2));
}

TEST(ZeroCopyPathTest, IsTheOneThatCopiesNothingAtTheLatencyOfTheChannel) {
  Endpoint ends[2];
  ends[0].peer = {0, 1};
  ends[1].peer = {1, 2};
  const PathQuery query = {.source = &ends[0],
                           .destination = &ends[1],
                           .channel_passes_descriptors = true,
                           .bytes = 4096,
                           .is_in_arena = true};
  TransportList transports;
  transports.push_back(
      std::make_unique<SayingTransport>("copy", PathCost{absl::Microseconds(1), 8e9}));
  EXPECT_EQ(ZeroCopyPath(transports, query, {}), std::nullopt);
  // Its own latency is not that of the control channel, so that another may be cheaper.
  transports.push_back(
      std::make_unique<SayingTransport>("far", PathCost{absl::Microseconds(1), kNoCopy}));
  EXPECT_EQ(ZeroCopyPath(transports, query, {}), std::nullopt);
  transports.push_back(std::make_unique<SayingTransport>(
      "map", PathCost{absl::Microseconds(1), kNoCopy}, /*has_control_channel_latency=*/true));
  EXPECT_EQ(ZeroCopyPath(transports, query, {}), 2u);
  EXPECT_EQ(ZeroCopyPath(transports, query, {.require = "copy"}), std::nullopt);
}

// Nothing is cheaper than a transfer that takes no longer than its descriptor, whatever the others
// report.
TEST(PathChoiceTest, DescriptorOnlyPath_SelectedWithAndWithoutAnExplanation) {
  TransportList transports;
  transports.push_back(std::make_unique<SayingTransport>(
      "shm", PathCost{absl::Microseconds(1), kNoCopy}, /*has_control_channel_latency=*/true));
  transports.push_back(
      std::make_unique<SayingTransport>("boaster", PathCost{absl::Nanoseconds(1), kNoCopy}));
  Endpoint ends[2];
  ends[0].peer = {0, 1};
  ends[1].peer = {1, 2};
  PathQuery query = {.source = &ends[0], .destination = &ends[1], .bytes = kMiB};
  for (const bool is_in_arena : {true, false}) {
    query.is_in_arena = is_in_arena;
    PathExplanation explanation;
    const std::optional<size_t> expected = is_in_arena ? 0 : 1;
    EXPECT_EQ(SelectPath(transports, query, {}, nullptr), expected);
    EXPECT_EQ(SelectPath(transports, query, {}, &explanation), expected);
    EXPECT_EQ(explanation.transport, expected);
    ASSERT_EQ(explanation.candidates.size(), 2u);
    EXPECT_EQ(explanation.cost.latency, explanation.candidates[*expected].cost->latency);
  }
}

TEST(PathChoiceTest, WithinAProcess_SelectsNoTransportAndExplainsLocal) {
  TransportList transports;
  transports.push_back(
      std::make_unique<SayingTransport>("fast", PathCost{absl::Nanoseconds(1), 1e9}));
  Endpoint ends[2];
  ends[0].peer = {0, 1};
  ends[1].peer = {0, 1};
  PathQuery query = {.source = &ends[0], .destination = &ends[1], .bytes = kMiB};
  for (const char* required : {"", "fast", "local"}) {
    const PathPolicy policy = {.require = required};
    EXPECT_EQ(SelectPath(transports, query, policy, nullptr), std::nullopt);
    const absl::StatusOr<PathExplanation> path = ExplainPath(transports, query, policy);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(Explain(*path),
              "not fast (0.001us + 1.0 GB/s, assumed); local (0.075us assumed, no copy)");
  }
  query.local_latency = absl::Nanoseconds(90);
  EXPECT_THAT(Explain(*ExplainPath(transports, query, {})),
              HasSubstr("local (0.09us measured at start, no copy)"));
  ends[1].peer = {1, 2};
  EXPECT_EQ(
      ExplainPath(transports, query, {.require = "local"}).status(),
      absl::FailedPreconditionError("the required transport cannot connect node 0 and node 1: "
                                    "local: they are two processes, node 0 and node 1"));
}

// Each end in GPU memory adds a copy, in latency as in rate.
TEST(PathChoiceTest, TensorsInGpuMemory_EachEndAddsOneCopy) {
  TransportList transports;
  transports.push_back(
      std::make_unique<SayingTransport>("host only", PathCost{absl::Microseconds(50), 1e9}));
  Endpoint ends[2];
  ends[0].peer = {0, 1};
  ends[1].peer = {1, 2};
  const TensorLocation gpu = {.space = MemorySpace::kCuda, .ordinal = 0};
  const auto cost = [&](TensorLocation from, TensorLocation to) {
    PathQuery query = {.source = &ends[0], .destination = &ends[1], .bytes = kMiB};
    query.source_location = from;
    query.destination_location = to;
    return ExplainPath(transports, query, {})->cost;
  };
  const PathCost host = cost({}, {});
  const PathCost one = cost(gpu, {});
  const PathCost both = cost(gpu, gpu);
  EXPECT_EQ(host.stages, 0);
  EXPECT_EQ(one.stages, 1);
  EXPECT_EQ(both.stages, 2);
  EXPECT_GT(one.latency, host.latency);
  EXPECT_EQ(both.latency - host.latency, 2 * (one.latency - host.latency));
  const auto seconds_per_gb = [](const PathCost& c) { return 1e9 / c.bytes_per_second; };
  EXPECT_GT(seconds_per_gb(one), seconds_per_gb(host));
  EXPECT_NEAR(seconds_per_gb(both) - seconds_per_gb(host),
              2 * (seconds_per_gb(one) - seconds_per_gb(host)), 1e-6);
  EXPECT_EQ(cost({}, gpu).latency, one.latency);
}

TEST(PathChoiceTest, ReportsTheSourceOfEachNumber) {
  TransportList transports;
  PathCost by_start = {absl::Nanoseconds(75), kNoCopy};
  by_start.latency_basis = CostBasis::kAtStart;
  transports.push_back(std::make_unique<SayingTransport>("near", by_start));
  transports.push_back(
      std::make_unique<SayingTransport>("far", PathCost{absl::Microseconds(50), 1e9}));
  transports.push_back(std::make_unique<SayingTransport>("none", absl::UnavailableError("so")));
  Endpoint ends[2];
  ends[0].peer = {0, 1};
  ends[1].peer = {1, 2};
  FakeClock clock;
  PathCostEstimator costs(transports.size());
  PathQuery query = {.source = &ends[0], .destination = &ends[1], .bytes = kMiB};
  query.estimates = &costs;
  query.now = clock.Now();
  absl::StatusOr<PathExplanation> choice = ExplainPath(transports, query, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(Explain(*choice),
            "near (0.075us measured at start, no copy); not far (50us + 1.0 GB/s, assumed); "
            "not none: so");
  costs.RecordBandwidth(1, kMiB, absl::Seconds(1.0 * kMiB / 1e9), clock.Now());
  clock.Advance(absl::Seconds(4));
  query.now = clock.Now();
  const absl::StatusOr<PathExplanation> later = ExplainPath(transports, query, {});
  EXPECT_THAT(Explain(*later), HasSubstr("not far (50us assumed + 1.0 GB/s measured 4s ago)"));
  EXPECT_NE(ExplanationKey(*choice), ExplanationKey(*later));
  PathExplanation other = *choice;
  other.candidates[0].cost->latency = absl::Nanoseconds(90);
  EXPECT_EQ(ExplanationKey(*choice), ExplanationKey(other));
  const PathExplanation both[] = {*choice, other};
  EXPECT_THAT(Explain(both), HasSubstr("near (0.075us to 0.09us measured at start, no copy)"));
}

// Names and reasons come from other processes.
TEST(PathChoiceTest, UnlikeTransfers_AreMeasuredSeparately) {
  const PathCost cost = {absl::Microseconds(1), 1e9};
  PathExplanation two;
  two.transport = 9;
  two.candidates = {{"a", absl::UnavailableError("x")}, {"b", absl::UnavailableError("y")}};
  PathExplanation one;
  one.transport = 9;
  one.candidates = {{"a", absl::UnavailableError("x\nb\ny")}};
  EXPECT_NE(ExplanationKey(one), ExplanationKey(two));
  PathExplanation allowed;
  allowed.transport = 9;
  allowed.candidates = {{"a", cost}};
  PathExplanation refused;
  refused.transport = 9;
  refused.candidates = {{"a", absl::UnavailableError("0 0 0 0 ")}};
  EXPECT_NE(ExplanationKey(allowed), ExplanationKey(refused));
}

// From this size on a transfer measures bandwidth, and below only latency.
TEST_F(PathCostEstimatorTest, SampleOfExactlyTheLeastSize_CountsAsBandwidth) {
  Cost();
  constexpr size_t kLeast = PathCostEstimator::kMinBandwidthSampleBytes;
  EXPECT_TRUE(costs_.WantsSample(0, kLeast, clock_.Now()));
  EXPECT_TRUE(costs_.WantsSample(0, kLeast, clock_.Now())) << "large ones always are";
  EXPECT_TRUE(costs_.WantsSample(0, kLeast - 1, clock_.Now()));
  EXPECT_FALSE(costs_.WantsSample(0, kLeast - 1, clock_.Now()));
  clock_.Advance(PathCostEstimator::kSamplePause - absl::Nanoseconds(1));
  EXPECT_FALSE(costs_.WantsSample(0, kLeast - 1, clock_.Now()));
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_TRUE(costs_.WantsSample(0, kLeast - 1, clock_.Now()));
  costs_.RecordBandwidth(0, kLeast - 1, absl::Seconds(1), clock_.Now());
  EXPECT_EQ(Cost().bandwidth_basis, CostBasis::kAssumed);
  costs_.RecordBandwidth(0, kLeast, absl::Seconds(1), clock_.Now());
  EXPECT_EQ(Cost().bandwidth_basis, CostBasis::kMeasured);
}

// After ten seconds its weight halves every thirty; below a 32nd it is forgotten.
TEST(SmoothedMeasureTest, WeightFadesAtTheStatedTimes) {
  FakeClock clock;
  SmoothedMeasure measure(SmoothedMeasure::Better::kLess);
  EXPECT_EQ(measure.Weight(clock.Now()), 0);
  EXPECT_EQ(measure.Value(7, clock.Now()), 7);
  measure.Record(2, 2, clock.Now());
  clock.Advance(SmoothedMeasure::kFresh);
  EXPECT_EQ(measure.Weight(clock.Now()), 1);
  clock.Advance(SmoothedMeasure::kHalfLife);
  EXPECT_NEAR(measure.Weight(clock.Now()), 0.5, 1e-9);
  clock.Advance(4 * SmoothedMeasure::kHalfLife - absl::Milliseconds(1));
  EXPECT_NEAR(measure.Weight(clock.Now()), SmoothedMeasure::kLeastWeight, 1e-5);
  clock.Advance(absl::Milliseconds(2));
  EXPECT_EQ(measure.Weight(clock.Now()), 0);
  EXPECT_EQ(measure.Value(7, clock.Now()), 7);
}

// A measurement counts a quarter if it is worse, and half if it is better; of how much worse or
// better it is, no more than so much.
TEST(SmoothedMeasureTest, OneMeasurement_HasALimitedWeight) {
  FakeClock clock;
  const auto after = [&clock](SmoothedMeasure::Better better, double measured) {
    SmoothedMeasure measure(better);
    measure.Record(measured, 1, clock.Now());
    return measure.Value(1, clock.Now());
  };
  using enum SmoothedMeasure::Better;
  EXPECT_NEAR(after(kLess, 4096), std::pow(8, 0.25), 1e-9);
  EXPECT_NEAR(after(kLess, 1.0 / 4), 1.0 / 2, 1e-9);
  EXPECT_NEAR(after(kLess, 1.0 / 4096), 1.0 / 8, 1e-9);
  EXPECT_NEAR(after(kMore, 1.0 / 4096), std::pow(8, -0.25), 1e-9);
  EXPECT_NEAR(after(kMore, 4), 2, 1e-9);
  EXPECT_NEAR(after(kMore, 4096), 8, 1e-9);
}

}  // namespace
}  // namespace ferry
