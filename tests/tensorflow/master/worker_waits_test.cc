// SPDX-License-Identifier: Apache-2.0
// Callers that wait for workers are notified of each that registers.
#include "tensorflow/master/worker_waits.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// The last worker registers after the cluster was read and before the comparison: its notification
// must find the wait. There is no other change that would wake it up.
TEST(WorkerWaits, WorkerThatRegistersMeanwhile_IsNoticed) {
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

// Each waiter is notified once, for any kind of end; and nothing of it stays.
TEST(WorkerWaits, FailsOrItsClientHasDisconnectedBefore_IsNotifiedOnce) {
  FakeClock clock;
  Timers timers(clock);
  WorkerWaits waits(timers);
  ChangingSource source;
  source.now = Missing();
  std::vector<absl::Status> told;
  const auto await = [&](std::shared_ptr<CancellationToken> gone) {
    waits.Await(
        {{}, clock.Now() + absl::Seconds(5), absl::Seconds(5), "CreateSession", std::move(gone)},
        source,
        [&told](const absl::StatusOr<Cluster>& cluster) { told.push_back(cluster.status()); });
  };
  const auto gone = std::make_shared<CancellationToken>();
  await(gone);
  await(nullptr);
  EXPECT_TRUE(told.empty());
  const absl::Status why = absl::UnavailableError("this process is leaving");
  waits.Fail(why);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0], why);
  EXPECT_EQ(told[1], why);
  waits.Fail(why);
  gone->Cancel();
  EXPECT_EQ(told.size(), 2u);
  EXPECT_TRUE(waits.empty());
  await(gone);
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[2].code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(waits.empty());
  EXPECT_EQ(timers.NextDeadline(), absl::InfiniteFuture());
}

// The wait lasts exactly until its timeout; the error names the missing workers.
TEST(WorkerWaits, Timeout_MissingWorkersAreNamed) {
  FakeClock clock;
  Timers timers(clock);
  WorkerWaits waits(timers);
  ChangingSource source;
  source.now = Missing();
  absl::Status status;
  waits.Await({{}, clock.Now() + absl::Seconds(5), absl::Seconds(5), "CreateSession", nullptr},
              source,
              [&status](const absl::StatusOr<Cluster>& cluster) { status = cluster.status(); });
  clock.Advance(absl::Seconds(5) - absl::Nanoseconds(1));
  timers.RunDue();
  EXPECT_FALSE(waits.empty());
  clock.Advance(absl::Nanoseconds(1));
  timers.RunDue();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("CreateSession waited 5s for these workers: "), std::string::npos)
      << status;
  EXPECT_NE(status.message().find(kWorker), std::string::npos) << status;
  EXPECT_TRUE(waits.empty());
}

}  // namespace
}  // namespace ferry::master
