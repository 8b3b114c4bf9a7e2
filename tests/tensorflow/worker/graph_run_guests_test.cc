// SPDX-License-Identifier: Apache-2.0
// How long a run keeps the threads of others.
#include <deque>
#include <memory>
#include <utility>

#include "plan_fixture.h"
#include "tensorflow/worker/graph_run.h"

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// A run whose clock advances by a microsecond at each reading, and whose executor waits.
struct SlowRun {
  explicit SlowRun(std::shared_ptr<const Plan> plan) {
    GraphRunOptions options;
    options.executor = &executor;
    options.now_ns = [this] { return now += 1000; };
    run = GraphRun::Create(std::move(plan), transfers, options,
                           [this](absl::Status) { is_done = true; });
  }
  void RunQueue() {
    while (!queue.empty()) {
      auto next = std::move(queue.front());
      queue.pop_front();
      std::move(next)();
    }
  }

  int64_t now = 0;
  bool is_done = false;
  std::deque<absl::AnyInvocable<void() &&>> queue;
  const Executor executor = [this](absl::AnyInvocable<void() &&> f) {
    queue.push_back(std::move(f));
  };
  const std::shared_ptr<HeldTransfers> transfers = std::make_shared<HeldTransfers>();
  std::shared_ptr<GraphRun> run;
};

// A borrowed thread is used for 50 us, by nodes of any kind.
TEST(GraphRunGuests, ContinueForALimitedTimeWithReceives) {
  constexpr size_t kNodes = 1000;
  PlanWriter writer;
  for (size_t i = 0; i < kNodes; ++i) writer.AddRecv(absl::StrCat(i));
  SlowRun slow(writer.Make());
  slow.run->Start();
  EXPECT_GE(slow.transfers->waiting().size(), 20u);
  EXPECT_LE(slow.transfers->waiting().size(), 60u);
  slow.RunQueue();
  EXPECT_EQ(slow.transfers->waiting().size(), kNodes);
  slow.run->Cancel(absl::CancelledError("enough"));
  slow.RunQueue();
  EXPECT_TRUE(slow.is_done);
}

TEST(GraphRunGuests, ContinueForALimitedTimeWithDeadNodes) {
  constexpr int kNodes = 1000;
  PlanWriter writer;
  const int in = writer.AddRecv("in");
  int last = in;
  for (int i = 0; i < kNodes; ++i) last = writer.Add("n", {last});
  writer.AddSend("out", last);
  const std::shared_ptr<const Plan> plan = writer.Make();
  for (int i = 0; i < kNodes; ++i) plan->NoteCost(in + 1 + i, 10);
  SlowRun slow(plan);
  slow.run->Start();
  Received dead;
  dead.is_dead = true;
  EXPECT_TRUE(slow.transfers->Answer("in", absl::OkStatus(), dead));
  EXPECT_FALSE(slow.is_done);
  EXPECT_EQ(slow.queue.size(), 1u);
  slow.RunQueue();
  EXPECT_TRUE(slow.is_done);
  EXPECT_THAT(slow.transfers->sent(), ElementsAre(Pair("out", "dead")));
}

}  // namespace
}  // namespace ferry::worker
