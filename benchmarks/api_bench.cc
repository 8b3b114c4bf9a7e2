// SPDX-License-Identifier: Apache-2.0
// Sends and receives of 8 bytes by the public API, within a node and between two; and of the
// tensors of a tree, from plain memory and into it.
//
//   build/release/benchmarks/api_bench [--benchmark_filter=...]
//
// Both nodes are of this process, each with a thread of its own. Times are those of one tensor.
// Names: how many the program uses, in turns; 0: every tensor has a new one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
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

double Median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<long>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A tree of small tensors, one after the other in memory of the program.
class Tree final {
 public:
  Tree(size_t tensors, size_t bytes) : memory_(tensors * bytes) {
    for (size_t i = 0; i < tensors; ++i) {
      tensors_.push_back(*Tensor::Wrap(DataType::kUint8, {static_cast<int64_t>(bytes)},
                                       memory_.data() + i * bytes, [] {}));
    }
  }
  const Tensor& tensor(size_t i) const { return tensors_[i]; }
  char* data() { return memory_.data(); }
  size_t bytes() const { return memory_.size(); }
  // Different in every round, and at every word.
  void Fill(uint64_t round) {
    for (size_t i = 0; i * 8 < bytes(); ++i) {
      const uint64_t word = WordOf(round, i);
      std::memcpy(data() + i * 8, &word, 8);
    }
  }
  bool Has(uint64_t round) const {
    bool is_right = true;
    for (size_t i = 0; i * 8 < bytes(); ++i) {
      const uint64_t word = WordOf(round, i);
      is_right &= std::memcmp(memory_.data() + i * 8, &word, 8) == 0;
    }
    return is_right;
  }

 private:
  static uint64_t WordOf(uint64_t round, uint64_t i) {
    return (round + 1) * 0xD6E8FEB86659FD93u + i * 0x9E3779B97F4A7C15u;
  }

  std::vector<char> memory_;
  std::vector<Tensor> tensors_;
};

// 1000 tensors of 4 KiB from one node to the other, by SendMany and RecvMany, until all are in the
// receiver's memory; alternating with a memcpy of all their bytes. Every byte is verified. posted:
// the receives are, before the clock starts; else both sides begin together.
void BM_Api_Tree(benchmark::State& state) {
  constexpr size_t kTensors = 1000;
  constexpr size_t kBytes = 4096;
  const bool is_posted_first = state.range(0) != 0;
  Job& job = Job::Shared();
  const int64_t id = NextStep();
  Step step = job.Open(0, id);
  Tree from(kTensors, kBytes);
  Tree to(kTensors, kBytes);
  std::atomic<int64_t> ready{0};
  std::atomic<int64_t> begun{0};
  std::atomic<int64_t> done{0};
  double end = 0;
  bool is_right = true;
  std::string path;
  std::thread other([&] {
    Step step = job.Open(1, id);
    std::vector<RecvOperation> recvs(kTensors);
    Ids ids("tree", 0, 1, kTensors);
    for (size_t i = 0; i < kTensors; ++i) {
      recvs[i].id = ids.Next();
      recvs[i].options.into = to.tensor(i);
    }
    for (int64_t round = 1;; ++round) {
      std::vector<Request> requests;
      if (is_posted_first) requests = step.RecvMany(recvs);
      ready.store(round);
      int64_t seen = 0;
      while ((seen = begun.load()) < round && seen >= 0) std::this_thread::yield();
      if (seen < 0) return;
      if (!is_posted_first) requests = step.RecvMany(recvs);
      const bool is_ok = WaitAll(absl::MakeSpan(requests), kLong).ok();
      end = NowSeconds();
      is_right &= is_ok && to.Has(static_cast<uint64_t>(round));
      path = requests.back().path();
      done.store(round);
    }
  });
  std::vector<SendOperation> sends(kTensors);
  Ids ids("tree", 0, 1, kTensors);
  for (size_t i = 0; i < kTensors; ++i) {
    sends[i].id = ids.Next();
    sends[i].tensor = from.tensor(i);
  }
  Tree copied(kTensors, kBytes);
  std::vector<double> samples;
  std::vector<double> floors;
  int64_t round = 0;
  const auto measure = [&] {
    ++round;
    from.Fill(static_cast<uint64_t>(round));
    const double copy_start = NowSeconds();
    std::memcpy(copied.data(), from.data(), from.bytes());
    benchmark::ClobberMemory();
    floors.push_back(NowSeconds() - copy_start);
    while (ready.load() < round) std::this_thread::yield();
    const double start = NowSeconds();
    begun.store(round);
    benchmark::DoNotOptimize(step.SendMany(sends));
    if (!step.Flush(kLong).ok()) std::abort();
    while (done.load() < round) std::this_thread::yield();
    samples.push_back(end - start);
  };
  measure();
  samples.clear();
  floors.clear();
  for (auto _ : state) {
    measure();
    state.SetIterationTime(samples.back());
  }
  while (ready.load() < round + 1) std::this_thread::yield();
  begun.store(-1);
  other.join();
  step.Abort(absl::OkStatus());
  if (!is_right) state.SkipWithError("bytes were wrong");
  state.SetLabel(path);
  state.counters["p50_us"] = Median(samples) * 1e6;
  state.counters["memcpy_us"] = Median(floors) * 1e6;
  state.counters["ratio"] = Median(floors) / Median(samples);
  state.counters["tensors_per_s"] = kTensors / Median(samples);
}

BENCHMARK(BM_Api_Local_SendThenRecv)->ArgName("names")->Arg(1)->Arg(1000)->Arg(0);
BENCHMARK(BM_Api_Local_SendThenRecv)->ArgName("names")->Arg(1000)->Threads(2);
BENCHMARK(BM_Api_Local_Many)->ArgName("names")->Arg(1000);
BENCHMARK(BM_Api_TwoNodes_8B)->ArgName("names")->Arg(1)->Arg(1000)->Arg(0)->UseRealTime();
BENCHMARK(BM_Api_TwoNodes_8B_Many)->ArgName("names")->Arg(1000)->UseRealTime();
BENCHMARK(BM_Api_Tree)->ArgName("posted")->Arg(1)->Arg(0)->UseManualTime()->Iterations(200);

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
