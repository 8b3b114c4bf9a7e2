// SPDX-License-Identifier: Apache-2.0
// One run: order, threads, errors, the end.
#include "tensorflow/worker/graph_run.h"

#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "plan_fixture.h"
#include "tensorflow/worker/thread_pool.h"

namespace ferry::worker {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kLong = absl::Seconds(30);

// A plan on real threads.
class Runner {
 public:
  explicit Runner(std::shared_ptr<const Plan> plan, int threads = 2, bool record_times = false)
      : plan_(std::move(plan)),
        pool_(std::make_unique<ThreadPool>("test-op-", threads)),
        executor_([this](absl::AnyInvocable<void() &&> f) { pool_->Run(std::move(f)); }) {
    GraphRunOptions options;
    options.executor = &executor_;
    options.now_ns = absl::GetCurrentTimeNanos;
    options.record_times = record_times;
    run_ = GraphRun::Create(plan_, transfers_, options, [this](absl::Status status) {
      ++done_count;
      status_ = std::move(status);
      if (done_count == 1) is_done_.Notify();
    });
  }
  ~Runner() { pool_.reset(); }

  GraphRun& run() { return *run_; }
  HeldTransfers& transfers() { return *transfers_; }
  absl::Status Wait() {
    EXPECT_TRUE(is_done_.WaitForNotificationWithTimeout(kLong)) << "the run does not end";
    // All late arrivals have arrived.
    pool_.reset();
    EXPECT_EQ(done_count, 1);
    EXPECT_THAT(transfers_->waiting(), IsEmpty());
    return status_;
  }
  absl::Status StartAndWait() {
    run_->Start();
    return Wait();
  }
  bool is_done() const { return is_done_.HasBeenNotified(); }

  std::atomic<int> done_count{0};

 private:
  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<HeldTransfers> transfers_ = std::make_shared<HeldTransfers>();
  std::unique_ptr<ThreadPool> pool_;
  const Executor executor_;
  absl::Status status_;
  absl::Notification is_done_;
  std::shared_ptr<GraphRun> run_;
};

TEST(GraphRun, RunsEachNodeOnceAfterItsInputs) {
  PlanWriter writer;
  absl::Mutex mu;
  std::vector<std::string> order;
  const auto noting = [&](const std::string& name) {
    return [&order, &mu, name](KernelContext& context) {
      absl::MutexLock lock(&mu);
      order.push_back(name);
      return PlanWriter::Sum(context);
    };
  };
  const int a = writer.Add("a", {}, {}, noting("a"));
  const int b = writer.Add("b", {a}, {}, noting("b"));
  const int c = writer.Add("c", {b, a}, {}, noting("c"));
  const int d = writer.Add("d", {}, {c}, noting("d"));
  const int e = writer.Add("e", {c, c, d}, {b}, noting("e"));
  writer.AddSend("out", e);
  Runner runner(writer.Make());
  EXPECT_TRUE(runner.StartAndWait().ok());
  EXPECT_THAT(order, ElementsAre("a", "b", "c", "d", "e"));
  // a=1 b=2 c=4 d=1 e=4+4+1+1.
  EXPECT_THAT(runner.transfers().sent(), ElementsAre(Pair("out", "10")));
}

TEST(GraphRun, EndsAtOnceIfItIsEmpty) {
  Runner runner(PlanWriter().Make());
  runner.run().Start();
  EXPECT_TRUE(runner.is_done());
  EXPECT_TRUE(runner.Wait().ok());
}

// Two nodes that are known to take long must not wait for each other's thread.
TEST(GraphRun, LongNodesRunAtTheSameTime) {
  PlanWriter writer;
  std::atomic<int> inside{0};
  const auto meet = [&](KernelContext& context) {
    ++inside;
    const absl::Time give_up = absl::Now() + kLong;
    while (inside < 3 && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    return inside < 3 ? absl::InternalError("alone") : PlanWriter::Sum(context);
  };
  const int root = writer.Add("root", {});
  std::vector<int> nodes;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(writer.Add(absl::StrCat("n", i), {root}, {}, meet));
  }
  const std::shared_ptr<const Plan> plan = writer.Make();
  for (const int node : nodes) plan->NoteCost(node, 1'000'000);
  Runner runner(plan, /*threads=*/3);
  EXPECT_TRUE(runner.StartAndWait().ok());
}

// Nodes of unknown cost are distributed over threads when they turn out to take long.
TEST(GraphRun, ManyNodesAreDistributed) {
  PlanWriter writer;
  absl::Mutex mu;
  std::map<std::thread::id, int> threads;
  for (int i = 0; i < 40; ++i) {
    writer.Add(absl::StrCat("n", i), {}, {}, [&](KernelContext& context) {
      absl::SleepFor(absl::Milliseconds(1));
      absl::MutexLock lock(&mu);
      ++threads[std::this_thread::get_id()];
      return PlanWriter::Sum(context);
    });
  }
  Runner runner(writer.Make(), /*threads=*/4);
  EXPECT_TRUE(runner.StartAndWait().ok());
  EXPECT_GE(threads.size(), 3u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
}

TEST(GraphRun, DeepGraphNeedsNoStack) {
  constexpr int kNodes = 100'000;
  PlanWriter writer;
  int last = writer.AddRecv("in");
  for (int i = 0; i < kNodes; ++i) last = writer.Add("n", {last});
  writer.AddSend("out", last);
  const std::shared_ptr<const Plan> plan = writer.Make();
  // Also on the thread that delivers the value, when all nodes are known to be short.
  for (int round = 0; round < 2; ++round) {
    Runner runner(plan);
    runner.run().Start();
    EXPECT_TRUE(runner.transfers().Answer("in", absl::OkStatus(), Value(0)));
    EXPECT_TRUE(runner.Wait().ok());
    EXPECT_THAT(runner.transfers().sent(), ElementsAre(Pair("out", absl::StrCat(kNodes))));
  }
}

TEST(GraphRun, WideGraphRunsEachNodeOnce) {
  constexpr int kNodes = 100'000;
  PlanWriter writer;
  std::atomic<int> count{0};
  const int root = writer.Add("root", {});
  std::vector<int> middle;
  for (int i = 0; i < kNodes; ++i) {
    middle.push_back(writer.Add("n", {root}, {}, [&count](KernelContext& context) {
      count.fetch_add(1, std::memory_order_relaxed);
      return PlanWriter::Sum(context);
    }));
  }
  writer.AddSend("out", writer.Add("sum", middle));
  Runner runner(writer.Make(), /*threads=*/3);
  EXPECT_TRUE(runner.StartAndWait().ok());
  EXPECT_EQ(count, kNodes);
  EXPECT_THAT(runner.transfers().sent(), ElementsAre(Pair("out", absl::StrCat(2 * kNodes + 1))));
}

TEST(GraphRun, ReceivesAreIssuedAtOnceAndDelayNothingElse) {
  PlanWriter writer;
  const int late = writer.AddRecv("late");
  const int early = writer.AddRecv("early");
  writer.AddSend("one", writer.Add("a", {early}));
  writer.AddSend("two", writer.Add("b", {late, early}));
  Runner runner(writer.Make());
  runner.transfers().Offer("early", Value(5));
  runner.run().Start();
  EXPECT_THAT(runner.transfers().waiting(), ElementsAre("late"));
  while (runner.transfers().sent().empty()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_THAT(runner.transfers().sent(), ElementsAre(Pair("one", "6")));
  EXPECT_FALSE(runner.is_done());
  runner.transfers().Answer("late", absl::OkStatus(), Value(10));
  EXPECT_TRUE(runner.Wait().ok());
  EXPECT_THAT(runner.transfers().sent(), ElementsAre(Pair("one", "6"), Pair("two", "16")));
}

TEST(GraphRun, DeadValuesPropagateWithoutRunningAnything) {
  PlanWriter writer;
  const int in = writer.AddRecv("in");
  bool has_run = false;
  const int after = writer.Add("after", {in}, {}, [&](KernelContext&) {
    has_run = true;
    return absl::OkStatus();
  });
  writer.AddSend("data", after);
  writer.AddSend("control", writer.Add("c", {}, {after}));
  writer.AddSend("other", writer.Add("o", {}));
  Runner runner(writer.Make());
  Received dead;
  dead.is_dead = true;
  runner.transfers().Offer("in", dead);
  EXPECT_TRUE(runner.StartAndWait().ok());
  EXPECT_FALSE(has_run);
  EXPECT_THAT(runner.transfers().sent(),
              ElementsAre(Pair("control", "dead"), Pair("data", "dead"), Pair("other", "1")));
}

TEST(GraphRun, ErrorEndsTheRunAndTheStep) {
  PlanWriter writer;
  writer.AddRecv("never");
  const int bad =
      writer.Add("bad", {}, {}, [](KernelContext&) { return absl::InternalError("fantasia!"); });
  bool has_run = false;
  writer.Add("after", {bad}, {}, [&](KernelContext& context) {
    has_run = true;
    return PlanWriter::Sum(context);
  });
  Runner runner(writer.Make());
  const auto fails = Fails(StatusCode::kInternal, HasSubstr("fantasia!\n\t [[{{node bad}}]]"));
  EXPECT_THAT(runner.StartAndWait(), fails);
  EXPECT_THAT(runner.transfers().abort_status(), fails);
  EXPECT_FALSE(has_run);
}

TEST(GraphRun, DerivedErrorIsReplacedByItsCause) {
  PlanWriter writer;
  writer.AddRecv("a");
  absl::Notification is_inside;
  absl::Notification may_fail;
  writer.Add("bad", {}, {}, [&](KernelContext&) {
    is_inside.Notify();
    may_fail.WaitForNotificationWithTimeout(kLong);
    return absl::InternalError("the cause");
  });
  Runner runner(writer.Make());
  runner.run().Start();
  ASSERT_TRUE(is_inside.WaitForNotificationWithTimeout(kLong));
  runner.transfers().Answer("a", MakeDerived(absl::AbortedError("somebody has failed")), {});
  may_fail.Notify();
  EXPECT_THAT(runner.Wait(), Fails(StatusCode::kInternal, HasSubstr("the cause")));
}

TEST(GraphRun, FirstErrorWins) {
  PlanWriter writer;
  writer.AddRecv("a");
  writer.AddRecv("b");
  Runner runner(writer.Make());
  runner.run().Start();
  runner.transfers().Answer("b", absl::UnavailableError("node 3 has died"), {});
  EXPECT_THAT(runner.Wait(), Fails(StatusCode::kUnavailable,
                                   AllOf(HasSubstr("node 3 has died"), HasSubstr("recv_b"))));
}

TEST(GraphRun, WrongOutputTypeIsAnError) {
  PlanWriter writer;
  writer.AddRecv("in");
  Runner runner(writer.Make());
  Received received;
  received.tensor = *Tensor::OfStrings(Shape(), {"x"});
  runner.transfers().Offer("in", received);
  EXPECT_THAT(
      runner.StartAndWait(),
      Fails(StatusCode::kInternal,
            HasSubstr("Output 0 of type string does not match declared output type int64")));
}

TEST(GraphRun, KernelWithoutAnOutputIsAnError) {
  PlanWriter writer;
  writer.Add("lazy", {}, {}, [](KernelContext&) { return absl::OkStatus(); });
  Runner runner(writer.Make());
  EXPECT_THAT(runner.StartAndWait(),
              Fails(StatusCode::kInternal, HasSubstr("Missing 0-th output")));
}

TEST(GraphRun, CancellingEndsPendingWorkAndBeginsNothing) {
  PlanWriter writer;
  const int in = writer.AddRecv("in");
  writer.Add("after", {in});
  Runner runner(writer.Make());
  runner.run().Start();
  runner.run().Cancel(absl::CancelledError("the client has gone"));
  EXPECT_THAT(runner.Wait(), Fails(StatusCode::kCancelled, HasSubstr("the client has gone")));
  // Too late: nothing happens.
  runner.run().Cancel(absl::InternalError("later"));
  EXPECT_EQ(runner.done_count, 1);
}

TEST(GraphRun, CancellingWaitsForRunningNodes) {
  PlanWriter writer;
  absl::Notification is_inside;
  absl::Notification may_end;
  std::atomic<bool> has_ended{false};
  const int slow = writer.Add("slow", {}, {}, [&](KernelContext& context) {
    is_inside.Notify();
    may_end.WaitForNotificationWithTimeout(kLong);
    has_ended = true;
    return PlanWriter::Sum(context);
  });
  writer.AddSend("out", slow);
  Runner runner(writer.Make());
  runner.run().Start();
  ASSERT_TRUE(is_inside.WaitForNotificationWithTimeout(kLong));
  runner.run().Cancel(absl::DeadlineExceededError("too long"));
  EXPECT_FALSE(runner.is_done());
  may_end.Notify();
  EXPECT_THAT(runner.Wait(), Fails(StatusCode::kDeadlineExceeded, "too long"));
  EXPECT_TRUE(has_ended);
  EXPECT_THAT(runner.transfers().sent(), IsEmpty());
}

TEST(GraphRun, CancelledBeforeItStartsRunsNothing) {
  PlanWriter writer;
  bool has_run = false;
  writer.Add("a", {}, {}, [&](KernelContext& context) {
    has_run = true;
    return PlanWriter::Sum(context);
  });
  writer.AddRecv("in");
  Runner runner(writer.Make());
  runner.run().Cancel(absl::CancelledError("no"));
  EXPECT_THAT(runner.StartAndWait(), Fails(StatusCode::kCancelled, "no"));
  EXPECT_FALSE(has_run);
}

// An input that is no longer needed must not stay allocated until the step ends.
TEST(GraphRun, TensorsAreFreedWhenTheirLastReaderHasRun) {
  PlanWriter writer;
  std::weak_ptr<Buffer> buffer;
  const int a = writer.Add("a", {}, {}, [&](KernelContext& context) {
    Tensor tensor = Number(7);
    buffer = tensor.buffer();
    context.set_output(0, std::move(tensor));
    return absl::OkStatus();
  });
  const int b = writer.Add("b", {a});
  bool is_gone = false;
  writer.Add("c", {b}, {}, [&](KernelContext& context) {
    is_gone = buffer.expired();
    return PlanWriter::Sum(context);
  });
  Runner runner(writer.Make());
  EXPECT_TRUE(runner.StartAndWait().ok());
  EXPECT_TRUE(is_gone);
}

TEST(GraphRun, RecordsWhenNodesRan) {
  PlanWriter writer;
  const int in = writer.AddRecv("in");
  const int slow = writer.Add("slow", {in}, {}, [](KernelContext& context) {
    absl::SleepFor(absl::Milliseconds(5));
    return PlanWriter::Sum(context);
  });
  const int out = writer.AddSend("out", slow);
  Runner runner(writer.Make(), 2, /*record_times=*/true);
  const int64_t before = absl::GetCurrentTimeNanos();
  runner.run().Start();
  Received received = Value(1);
  received.path = "shm";
  runner.transfers().Answer("in", absl::OkStatus(), std::move(received));
  ASSERT_TRUE(runner.Wait().ok());
  const std::vector<NodeTimes>& times = runner.run().times();
  ASSERT_EQ(times.size(), 3u);
  for (const NodeTimes& each : times) {
    EXPECT_GE(each.ready_ns, before);
    EXPECT_GE(each.start_ns, each.ready_ns);
    EXPECT_GE(each.end_ns, each.start_ns);
  }
  EXPECT_GE(times[slow].end_ns - times[slow].start_ns, 4'000'000);
  EXPECT_GE(times[slow].ready_ns, times[in].start_ns);
  EXPECT_GE(times[out].start_ns, times[slow].end_ns);
  EXPECT_EQ(times[in].path, "shm");
  EXPECT_EQ(times[in].bytes, 8u);
  EXPECT_EQ(times[out].bytes, 8u);
}

// In a trace every node is in the row of the thread that finished it.
TEST(GraphRun, RecordsTheThreadThatFinishedEachNode) {
  PlanWriter writer;
  const int in = writer.AddRecv("in");
  const int sum = writer.Add("sum", {in});
  const int out = writer.AddSend("out", sum);
  // Everything runs on this thread.
  const Executor executor = [](absl::AnyInvocable<void() &&> task) { std::move(task)(); };
  GraphRunOptions options;
  options.executor = &executor;
  options.now_ns = absl::GetCurrentTimeNanos;
  options.record_times = true;
  const auto transfers = std::make_shared<HeldTransfers>();
  absl::Status status = absl::UnknownError("the run does not end");
  const auto run = GraphRun::Create(writer.Make(), transfers, options,
                                    [&status](absl::Status ended) { status = std::move(ended); });
  run->Start();
  transfers->Answer("in", absl::OkStatus(), Value(1));
  ASSERT_TRUE(status.ok()) << status;
  for (const int node : {in, sum, out}) {
    EXPECT_EQ(run->times()[static_cast<size_t>(node)].thread, gettid()) << node;
  }
}

TEST(Plan, RefusesMissingInputsAndCycles) {
  PlanWriter missing;
  missing.Add("a", {3});
  EXPECT_THAT(Plan::Create(missing.nodes()).status(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("a")));
  PlanWriter port;
  port.Add("a", {});
  port.Add("b", {0});
  port.nodes()[1].inputs[0].port = 1;
  EXPECT_THAT(Plan::Create(port.nodes()).status(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("0:1")));
  PlanWriter cycle;
  cycle.Add("a", {1});
  cycle.Add("b", {0});
  EXPECT_THAT(Plan::Create(cycle.nodes()).status(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("2 nodes wait for each other")));
}

// The step may continue with other graphs: a late cancellation must not end them.
TEST(GraphRun, CancelledAfterItsEnd_TheStepIsLeftAlone) {
  PlanWriter writer;
  writer.Add("a", {});
  Runner runner(writer.Make());
  EXPECT_TRUE(runner.StartAndWait().ok());
  runner.run().Cancel(absl::CancelledError("late"));
  EXPECT_TRUE(runner.transfers().abort_status().ok()) << runner.transfers().abort_status();
  EXPECT_EQ(runner.done_count, 1);
}

// One beyond the last, and one before the first.
TEST(Plan, NodesAndPortsAtTheEdge_AreRefused) {
  const auto create = [](int input, int port, int control) {
    PlanWriter writer;
    writer.Add("first", {});
    writer.Add("second", {0}, {0});
    writer.nodes()[1].inputs[0] = {input, port};
    writer.nodes()[1].controls[0] = control;
    return Plan::Create(std::move(writer.nodes())).status();
  };
  EXPECT_TRUE(create(0, 0, 0).ok());
  for (const absl::Status& status :
       {create(2, 0, 0), create(-1, 0, 0), create(0, 1, 0), create(0, 0, 2), create(0, 0, -1)}) {
    EXPECT_THAT(status, Fails(StatusCode::kInvalidArgument, HasSubstr("takes what is not there")));
  }
}

// A duration of zero counts as something: it has run.
TEST(Plan, CostsOfNodes_AdaptSlowly) {
  PlanWriter writer;
  writer.Add("a", {});
  writer.Add("b", {});
  const std::shared_ptr<const Plan> plan = writer.Make();
  EXPECT_EQ(plan->CostNs(0), std::nullopt);
  plan->NoteCost(0, -5);
  EXPECT_EQ(plan->CostNs(0), 1);
  plan->NoteCost(1, 1000);
  EXPECT_EQ(plan->CostNs(1), 1000) << "the first counts fully";
  plan->NoteCost(1, 5000);
  EXPECT_EQ(plan->CostNs(1), 2000);
  plan->NoteCost(1, int64_t{1} << 40);
  EXPECT_GT(*plan->CostNs(1), 1'000'000'000);
  EXPECT_LT(*plan->CostNs(1), int64_t{1} << 31);
  EXPECT_EQ(plan->CostNs(0), 1);
}

}  // namespace
}  // namespace ferry::worker
