// SPDX-License-Identifier: Apache-2.0
// The cost of closing a step while transfers of other steps are open.
//
//   build/release/benchmarks/close_bench
//
// Two nodes of one process, over shared memory. The argument is the number of open transfers: views
// that the receiver keeps, each of a step of its own. Only Step::Close is timed; p50, p99 in
// microseconds. Goal: the same with 10 000 open transfers as with none.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "node/transfer_engine.h"

namespace ferry::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int64_t kFirstOpenStep = int64_t{1} << 40;
// More than a transfer descriptor brings along.
constexpr int64_t kViewBytes = 4096;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "close_bench: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

uint64_t IncarnationOf(int node) { return 100u + static_cast<unsigned>(node); }

RendezvousKey KeyFrom(int from, int to) {
  const auto device = [](int node) {
    return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
  };
  return *RendezvousKey::Parse(
      RendezvousKey::Text(device(from), IncarnationOf(from), device(to), "value"));
}

// Node 0 sends to itself or to node 1, which keeps the views of the steps that stay open.
class Nodes final {
 public:
  explicit Nodes(int64_t open_transfers) {
    for (int node = 0; node < 2; ++node) {
      TransferEngineOptions options;
      options.listen = "127.0.0.1:0";
      options.token = "bench";
      options.use_gpus = false;
      Endpoint self;
      self.peer = {node, IncarnationOf(node)};
      self.boot_id = "here";
      auto started =
          TransferEngine::Start(options, self, [this](int32_t other, ResolveCallback done) {
            std::move(done)(engines_[other]->self());
          });
      Check(started.status());
      engines_[node] = *std::move(started);
    }
    auto buffer = source().arena().Allocate(kViewBytes);
    Check(buffer.status());
    const Tensor tensor =
        *Tensor::Create(DataType::kUint8, *Shape::Create({kViewBytes}), *std::move(buffer));
    for (int64_t i = 0; i < open_transfers; ++i) {
      Step step = Open(source(), kFirstOpenStep + i);
      Check(step.Send(KeyFrom(0, 1), tensor));
      absl::StatusOr<Tensor> view = Open(sink(), kFirstOpenStep + i).Recv(KeyFrom(0, 1), kTimeout);
      Check(view.status());
      views_.push_back(*std::move(view));
    }
  }

  TransferEngine& source() { return *engines_[0]; }
  TransferEngine& sink() { return *engines_[1]; }
  static Step Open(TransferEngine& engine, int64_t id) {
    absl::StatusOr<Step> step = engine.OpenStep(id);
    Check(step.status());
    return *std::move(step);
  }

 private:
  std::unique_ptr<TransferEngine> engines_[2];
  std::vector<Tensor> views_;
};

void CloseSteps(benchmark::State& state, int destination) {
  Nodes nodes(state.range(0));
  const RendezvousKey key = KeyFrom(0, destination);
  TransferEngine& receiver = destination == 0 ? nodes.source() : nodes.sink();
  const Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({8}));
  std::vector<double> seconds;
  int64_t id = 0;
  for (auto _ : state) {
    Step step = Nodes::Open(nodes.source(), ++id);
    Step receiving = Nodes::Open(receiver, id);
    Check(step.Send(key, tensor));
    Check(receiving.Recv(key, kTimeout).status());
    const absl::Time start = SteadyClock().Now();
    Check(step.Close(kTimeout));
    seconds.push_back(absl::ToDoubleSeconds(SteadyClock().Now() - start));
    state.SetIterationTime(seconds.back());
    if (destination != 0) receiver.Cleanup(id);
  }
  std::sort(seconds.begin(), seconds.end());
  state.counters["p50_us"] = seconds[seconds.size() / 2] * 1e6;
  state.counters["p99_us"] = seconds[seconds.size() * 99 / 100] * 1e6;
}

void BM_Close_Local(benchmark::State& state) { CloseSteps(state, 0); }
void BM_Close_Peer(benchmark::State& state) { CloseSteps(state, 1); }

BENCHMARK(BM_Close_Local)->UseManualTime()->Iterations(2'000)->Arg(0)->Arg(10'000);
BENCHMARK(BM_Close_Peer)->UseManualTime()->Iterations(2'000)->Arg(0)->Arg(10'000);

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
