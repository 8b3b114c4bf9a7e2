// SPDX-License-Identifier: Apache-2.0
// Random graphs whose threads, tensors, failures and cancellations come in random order.
// FERRY_SIM_SEED=<n> replays one of them.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "plan_fixture.h"
#include "tensorflow/worker/thread_pool.h"

namespace ferry::worker {
namespace {

// A graph, and its result by a simple traversal.
struct Drawn {
  std::shared_ptr<const Plan> plan;
  // The value of each edge that is received.
  std::map<std::string, int64_t> received;
  std::map<std::string, std::string> sent;
  std::vector<int> nodes;
};

struct Log {
  absl::Mutex mu;
  // By node.
  std::map<int, int> runs ABSL_GUARDED_BY(mu);
};

class Drawing {
 public:
  Drawing(uint64_t seed, Log& log) : random_(seed), log_(log) {}

  int Below(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  bool Chance(int percent) { return Below(100) < percent; }

  // failing: percent of nodes that fail.
  Drawn Draw(int failing) {
    Drawn drawn;
    PlanWriter writer;
    std::vector<int64_t> values;
    const int count = 1 + Below(60);
    for (int i = 0; i < count; ++i) {
      const std::vector<int> controls = Some(i, 2, /*distinct=*/true);
      if (Chance(25)) {
        const std::string edge = absl::StrCat("in", i);
        writer.AddRecv(edge, controls);
        values.push_back(Below(1000));
        drawn.received[edge] = values.back();
        continue;
      }
      const std::vector<int> inputs = Some(i, 4, /*distinct=*/false);
      int64_t value = 1;
      for (const int input : inputs) value += values[static_cast<size_t>(input)];
      values.push_back(value);
      const bool fails = Chance(failing);
      drawn.nodes.push_back(i);
      writer.Add(absl::StrCat("n", i), inputs, controls, [this, i, fails](KernelContext& context) {
        {
          absl::MutexLock lock(&log_.mu);
          ++log_.runs[i];
        }
        if (fails) return absl::InternalError(absl::StrCat("node ", i));
        return PlanWriter::Sum(context);
      });
    }
    for (int i = 0; i < count; ++i) {
      if (!Chance(30)) continue;
      const std::string edge = absl::StrCat("out", i);
      writer.AddSend(edge, i);
      drawn.sent[edge] = absl::StrCat(values[static_cast<size_t>(i)]);
    }
    drawn.plan = writer.Make();
    for (const int node : drawn.nodes) {
      if (Chance(50)) drawn.plan->NoteCost(node, Chance(50) ? 100 : 10'000'000);
    }
    return drawn;
  }

 private:
  std::vector<int> Some(int below, int most, bool distinct) {
    std::vector<int> some;
    for (int i = Below(most + 1); below > 0 && i > 0; --i) {
      const int each = std::max(0, below - 1 - Below(8));
      if (distinct && std::count(some.begin(), some.end(), each) > 0) continue;
      some.push_back(each);
    }
    return some;
  }

  std::mt19937_64 random_;
  Log& log_;
};

// Every schedule is a sequence of choices: which thread continues, which tensor arrives.
void Simulate(uint64_t seed) {
  SCOPED_TRACE(absl::StrCat("FERRY_SIM_SEED=", seed));
  Log log;
  Drawing drawing(seed, log);
  const bool may_fail = drawing.Chance(40);
  const Drawn drawn = drawing.Draw(may_fail ? 5 : 0);
  std::vector<absl::AnyInvocable<void() &&>> threads;
  const Executor executor = [&](absl::AnyInvocable<void() &&> f) {
    threads.push_back(std::move(f));
  };
  // Steps of a clock that runs at any speed.
  int64_t now = 1;
  auto transfers = std::make_shared<HeldTransfers>();
  std::set<std::string> unanswered;
  for (const auto& [edge, value] : drawn.received) {
    if (drawing.Chance(40)) {
      transfers->Offer(edge, Value(value));
    } else {
      unanswered.insert(edge);
    }
  }
  int done_count = 0;
  absl::Status status;
  GraphRunOptions options;
  options.executor = &executor;
  options.now_ns = [&] { return now += drawing.Below(3) == 0 ? 200'000 : 50; };
  options.record_times = drawing.Chance(20);
  std::shared_ptr<GraphRun> run =
      GraphRun::Create(drawn.plan, transfers, options, [&](absl::Status ended) {
        ++done_count;
        status = std::move(ended);
      });
  const std::weak_ptr<GraphRun> weak = run;
  const bool will_cancel = drawing.Chance(15);
  bool has_cancelled = false;
  bool has_failed_receive = false;
  if (will_cancel && drawing.Chance(10)) {
    has_cancelled = true;
    run->Cancel(absl::CancelledError("cancelled"));
  }
  run->Start();
  while (!threads.empty() || !transfers->waiting().empty()) {
    ASSERT_EQ(done_count, 0) << "it has ended, and something of it still waits";
    if (will_cancel && !has_cancelled && drawing.Chance(10)) {
      has_cancelled = true;
      run->Cancel(absl::CancelledError("cancelled"));
      continue;
    }
    const std::vector<std::string> waiting = transfers->waiting();
    const int choice = drawing.Below(static_cast<int>(threads.size() + waiting.size()));
    if (choice < static_cast<int>(threads.size())) {
      absl::AnyInvocable<void()&&> thread = std::move(threads[static_cast<size_t>(choice)]);
      threads.erase(threads.begin() + choice);
      std::move(thread)();
    } else {
      const std::string& edge = waiting[static_cast<size_t>(choice) - threads.size()];
      const bool fails = may_fail && drawing.Chance(10);
      has_failed_receive |= fails;
      transfers->Answer(edge, fails ? absl::UnavailableError("node 3 has died") : absl::OkStatus(),
                        Value(drawn.received.at(edge)));
    }
  }
  EXPECT_EQ(done_count, 1);
  run.reset();
  EXPECT_TRUE(weak.expired()) << "somebody still holds the run";
  absl::MutexLock lock(&log.mu);
  for (const auto& [node, runs] : log.runs) EXPECT_EQ(runs, 1) << "node " << node;
  if (status.ok()) {
    EXPECT_EQ(log.runs.size(), drawn.nodes.size());
    EXPECT_EQ(transfers->sent(), drawn.sent);
    EXPECT_TRUE(transfers->abort_status().ok());
    EXPECT_FALSE(has_failed_receive);
  } else {
    EXPECT_TRUE(may_fail || has_cancelled) << status;
    EXPECT_FALSE(IsDerived(status)) << status;
    EXPECT_FALSE(transfers->abort_status().ok());
  }
}

TEST(GraphRunSimulation, EachNodeOnceAndOneEnd) {
  if (const char* const text = std::getenv("FERRY_SIM_SEED"); text != nullptr) {
    uint64_t seed = 0;
    ASSERT_TRUE(absl::SimpleAtoi(text, &seed));
    return Simulate(seed);
  }
  const auto first = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  for (uint64_t i = 0; i < 20'000 && !::testing::Test::HasFailure(); ++i) Simulate(first + i);
}

// The same on threads, whose order is not controlled.
TEST(GraphRunSimulation, OnThreads) {
  const auto first = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  for (uint64_t i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", first + i));
    Log log;
    Drawing drawing(first + i, log);
    const bool may_fail = drawing.Chance(30);
    const Drawn drawn = drawing.Draw(may_fail ? 5 : 0);
    auto transfers = std::make_shared<HeldTransfers>();
    std::atomic<int> done_count{0};
    absl::Status status;
    {
      ThreadPool pool("sim-op-", 3);
      const Executor executor = [&](absl::AnyInvocable<void() &&> f) { pool.Run(std::move(f)); };
      GraphRunOptions options;
      options.executor = &executor;
      options.now_ns = absl::GetCurrentTimeNanos;
      absl::Notification is_done;
      const std::shared_ptr<GraphRun> run =
          GraphRun::Create(drawn.plan, transfers, options, [&](absl::Status ended) {
            status = std::move(ended);
            ++done_count;
            is_done.Notify();
          });
      run->Start();
      if (drawing.Chance(20)) run->Cancel(absl::CancelledError("cancelled"));
      const absl::Time give_up = absl::Now() + absl::Seconds(30);
      while (!is_done.HasBeenNotified() && absl::Now() < give_up) {
        for (const std::string& edge : transfers->waiting()) {
          transfers->Answer(edge, absl::OkStatus(), Value(drawn.received.at(edge)));
        }
        std::this_thread::yield();
      }
      ASSERT_TRUE(is_done.HasBeenNotified());
    }
    EXPECT_EQ(done_count, 1);
    if (!status.ok()) continue;
    EXPECT_EQ(transfers->sent(), drawn.sent);
    absl::MutexLock lock(&log.mu);
    EXPECT_EQ(log.runs.size(), drawn.nodes.size());
  }
}

}  // namespace
}  // namespace ferry::worker
