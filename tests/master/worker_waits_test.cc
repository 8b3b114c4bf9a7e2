// SPDX-License-Identifier: Apache-2.0
// Who waits for workers hears of each that comes.
#include "tensorflow/master/worker_waits.h"

#include <functional>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "base/clock.h"

namespace ferry::master {
namespace {

constexpr char kWorker[] = "/job:worker/replica:0/task:0";

// A cluster that changes while it is looked at.
class ChangingSource final : public ClusterSource {
 public:
  Cluster Now() override {
    Cluster cluster = now;
    if (auto hook = std::exchange(while_looking, nullptr)) hook();
    return cluster;
  }

  Cluster now;
  std::function<void()> while_looking;
};

Cluster Missing() {
  Cluster cluster;
  cluster.missing.push_back({{"worker", 0, 0}, kWorker, "has not joined"});
  return cluster;
}
Cluster Complete() {
  Cluster cluster;
  cluster.workers.emplace_back().task = {"worker", 0, 0};
  cluster.workers.back().name = kWorker;
  return cluster;
}

// The last worker comes after the cluster was looked at and before that is compared: who tells of
// it must find the wait. There is no other change that would wake it up.
TEST(WorkerWaits, HearsOfAWorkerThatComesJustThen) {
  FakeClock clock;
  Timers timers(clock);
  WorkerWaits waits(timers);
  ChangingSource source;
  source.now = Missing();
  source.while_looking = [&] {
    source.now = Complete();
    waits.Look(source.now);
  };
  int count = 0;
  absl::StatusOr<Cluster> result = absl::UnknownError("no answer");
  waits.Await({{}, clock.Now() + absl::Seconds(5), absl::Seconds(5), "CreateSession", nullptr},
              source, [&](absl::StatusOr<Cluster> cluster) {
                ++count;
                result = std::move(cluster);
              });
  EXPECT_EQ(count, 1);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->workers.size(), 1u);
  EXPECT_TRUE(waits.empty());
  clock.Advance(absl::Seconds(10));
  timers.RunDue();
  EXPECT_EQ(count, 1);
}

// A client that may go, and a deadline, are watched for as long as the wait lasts.
TEST(WorkerWaits, WaitIsOver_ItsTimerAndClientAreReleased) {
  FakeClock clock;
  Timers timers(clock);
  WorkerWaits waits(timers);
  ChangingSource source;
  source.now = Missing();
  const auto gone = std::make_shared<CancellationToken>();
  int count = 0;
  const auto await = [&] {
    waits.Await({{}, clock.Now() + absl::Seconds(5), absl::Seconds(5), "CreateSession", gone},
                source, [&count](const absl::StatusOr<Cluster>&) { ++count; });
  };
  await();
  EXPECT_EQ(gone->registered_count(), 1u);
  EXPECT_EQ(timers.NextDeadline(), clock.Now() + absl::Seconds(5));
  waits.Look(Complete());
  EXPECT_EQ(count, 1);
  EXPECT_EQ(gone->registered_count(), 0u);
  EXPECT_EQ(timers.NextDeadline(), absl::InfiniteFuture());
  // By its deadline, and by the client.
  await();
  clock.Advance(absl::Seconds(5));
  timers.RunDue();
  EXPECT_EQ(count, 2);
  EXPECT_EQ(gone->registered_count(), 0u);
  await();
  gone->Cancel();
  EXPECT_EQ(count, 3);
  EXPECT_EQ(timers.NextDeadline(), absl::InfiniteFuture());
  EXPECT_TRUE(waits.empty());
}

}  // namespace
}  // namespace ferry::master
