// SPDX-License-Identifier: Apache-2.0
// Sends and receives of 8 bytes by the public API, within a node and between two.
//
//   build/release/benchmarks/api_bench [--benchmark_filter=...]
//
// Both nodes are of this process, each with a thread of its own. Times are those of one tensor.
// Names: how many the program uses, in turns; 0: every tensor has a new one.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include <ferry/node.h>

#include "tests/api/coordinator_server.h"

namespace ferry::bench {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);

// Two nodes of one job.
class Job final {
 public:
  Job() {
    coordinator_ = StartCoordinator(2, address_);
    std::thread other([this] { nodes_[1] = Join(1); });
    nodes_[0] = Join(0);
    other.join();
  }

  Node& node(int rank) { return *nodes_[rank]; }
  // A step of its own for every run of a benchmark.
  Step Open(int rank, int64_t id) { return *node(rank).OpenStep(id); }

  static Job& Shared() {
    static Job* const job = new Job;
    return *job;
  }

 private:
  std::unique_ptr<Node> Join(int rank) {
    NodeOptions options;
    options.rank = rank;
    options.num_nodes = 2;
    options.coordinator_address = address_;
    options.connect_timeout = kLong;
    options.transfer.use_gpus = false;
    auto node = Node::Join(std::move(options));
    if (!node.ok()) std::abort();
    return *std::move(node);
  }

  std::string address_;
  std::shared_ptr<void> coordinator_;
  std::unique_ptr<Node> nodes_[2];
};

int64_t NextStep() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

Tensor Value(Node& node) { return *node.Allocate(Device::Host(), DataType::kUint8, {8}); }

void Send(Step& step, const TensorId& id, const Tensor& value) {
  if (!step.Send(id, value).Wait(kLong).ok()) std::abort();
}

// Recurring names, or new ones.
class Ids final {
 public:
  Ids(std::string what, int source, int destination, int64_t count)
      : what_(std::move(what)), source_(source), destination_(destination) {
    for (int64_t i = 0; i < count; ++i) ids_.push_back(Make(i));
  }

  const TensorId& Next() {
    const int64_t i = next_++;
    if (!ids_.empty()) return ids_[static_cast<size_t>(i) % ids_.size()];
    fresh_ = Make(i);
    return fresh_;
  }

 private:
  TensorId Make(int64_t i) const {
    return {.name = absl::StrCat(what_, "/parameter/", i),
            .source = source_,
            .destination = destination_};
  }

  const std::string what_;
  const int source_;
  const int destination_;
  std::vector<TensorId> ids_;
  TensorId fresh_;
  int64_t next_ = 0;
};

// The value first, then its receive, which is done at once.
void BM_Api_Local_SendThenRecv(benchmark::State& state) {
  Job& job = Job::Shared();
  Step step = job.Open(0, NextStep());
  Ids ids(absl::StrCat("thread", state.thread_index()), 0, 0, state.range(0));
  const Tensor value = Value(job.node(0));
  int64_t received = 0;
  for (auto _ : state) {
    const TensorId& id = ids.Next();
    Send(step, id, value);
    received += step.Recv(id).Wait(kLong).ok() ? 1 : 0;
  }
  if (received != state.iterations()) state.SkipWithError("values were lost");
  step.Abort(absl::OkStatus());
  state.SetItemsProcessed(state.iterations());
}

// 64 receives, then their 64 values, in one call each.
void BM_Api_Local_Many(benchmark::State& state) {
  constexpr size_t kBatch = 64;
  Job& job = Job::Shared();
  Step step = job.Open(0, NextStep());
  Ids ids("batch", 0, 0, state.range(0));
  const Tensor value = Value(job.node(0));
  std::vector<RecvOperation> recvs(kBatch);
  std::vector<SendOperation> sends(kBatch);
  for (SendOperation& each : sends) each.tensor = value;
  int64_t received = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < kBatch; ++i) recvs[i].id = sends[i].id = ids.Next();
    std::vector<Request> requests = step.RecvMany(recvs);
    benchmark::DoNotOptimize(step.SendMany(sends));
    for (Request& each : requests) received += each.Wait(kLong).ok() ? 1 : 0;
  }
  if (received != state.iterations() * int64_t{kBatch}) state.SkipWithError("values were lost");
  step.Abort(absl::OkStatus());
  state.SetItemsProcessed(state.iterations() * int64_t{kBatch});
}

// A value to the other node and one back, half of the time of both; receives are posted first. The
// other node's thread ends when the step does.
void BM_Api_TwoNodes_8B(benchmark::State& state) {
  Job& job = Job::Shared();
  const int64_t id = NextStep();
  const int64_t names = state.range(0);
  Step step = job.Open(0, id);
  std::thread other([&job, id, names] {
    Step step = job.Open(1, id);
    Ids pings("ping", 0, 1, names);
    Ids pongs("pong", 1, 0, names);
    const Tensor value = Value(job.node(1));
    Request next = step.Recv(pings.Next());
    while (next.Wait(kLong).ok()) {
      next = step.Recv(pings.Next());
      Send(step, pongs.Next(), value);
    }
  });
  Ids pings("ping", 0, 1, names);
  Ids pongs("pong", 1, 0, names);
  const Tensor value = Value(job.node(0));
  int64_t received = 0;
  for (auto _ : state) {
    Request pong = step.Recv(pongs.Next());
    Send(step, pings.Next(), value);
    received += pong.Wait(kLong).ok() ? 1 : 0;
  }
  if (received != state.iterations()) state.SkipWithError("values were lost");
  step.Abort(absl::OkStatus());
  other.join();
  state.SetItemsProcessed(2 * state.iterations());
}

// Batches of 64 to the other node, whose thread answers each with one value.
void BM_Api_TwoNodes_8B_Many(benchmark::State& state) {
  constexpr size_t kBatch = 64;
  Job& job = Job::Shared();
  const int64_t id = NextStep();
  const int64_t names = state.range(0);
  Step step = job.Open(0, id);
  std::thread other([&job, id, names] {
    Step step = job.Open(1, id);
    Ids pings("ping", 0, 1, names);
    Ids pongs("pong", 1, 0, names);
    const Tensor value = Value(job.node(1));
    std::vector<RecvOperation> recvs(kBatch);
    while (true) {
      for (RecvOperation& each : recvs) each.id = pings.Next();
      std::vector<Request> requests = step.RecvMany(recvs);
      for (Request& each : requests) {
        if (!each.Wait(kLong).ok()) return;
      }
      Send(step, pongs.Next(), value);
    }
  });
  Ids pings("ping", 0, 1, names);
  Ids pongs("pong", 1, 0, names);
  const Tensor value = Value(job.node(0));
  std::vector<SendOperation> sends(kBatch);
  for (SendOperation& each : sends) each.tensor = value;
  int64_t received = 0;
  for (auto _ : state) {
    for (SendOperation& each : sends) each.id = pings.Next();
    Request pong = step.Recv(pongs.Next());
    benchmark::DoNotOptimize(step.SendMany(sends));
    received += pong.Wait(kLong).ok() ? 1 : 0;
  }
  if (received != state.iterations()) state.SkipWithError("values were lost");
  step.Abort(absl::OkStatus());
  other.join();
  state.SetItemsProcessed(state.iterations() * int64_t{kBatch});
}

BENCHMARK(BM_Api_Local_SendThenRecv)->ArgName("names")->Arg(1)->Arg(1000)->Arg(0);
BENCHMARK(BM_Api_Local_SendThenRecv)->ArgName("names")->Arg(1000)->Threads(2);
BENCHMARK(BM_Api_Local_Many)->ArgName("names")->Arg(1000);
BENCHMARK(BM_Api_TwoNodes_8B)->ArgName("names")->Arg(1)->Arg(1000)->Arg(0)->UseRealTime();
BENCHMARK(BM_Api_TwoNodes_8B_Many)->ArgName("names")->Arg(1000)->UseRealTime();

}  // namespace
}  // namespace ferry::bench

int main(int count, char** arguments) {
  // As in the `ferry` tool.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
