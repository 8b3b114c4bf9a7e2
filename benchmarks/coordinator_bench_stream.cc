// SPDX-License-Identifier: Apache-2.0
// Set and get over ferry.v1.Control, against a stream that answers each message with a fixed one.
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/blocking_counter.h"

#include "base/clock.h"
#include "benchmarks/coordinator_bench.h"
#include "benchmarks/support/control_frames.h"
#include "benchmarks/support/control_ranks.h"
#include "benchmarks/support/floor_services.h"
#include "benchmarks/support/server_process.h"
#include "benchmarks/support/unary_calls.h"

namespace ferry::bench {
namespace {

constexpr int kKeys = 1024;

enum class Operation { kSet, kGet };

// The number of streams, of requests in flight on all of them together, and of keys in each
// request.
struct Shape {
  int streams = 1;
  int inflight = 1;
  int batch = 1;
};

std::string Key(int index) { return absl::StrFormat("bench/%06d", index % kKeys); }

std::vector<std::string> Ops(Operation operation, int batch) {
  std::vector<std::string> ops;
  for (int first = 0; first < kKeys; first += batch) {
    v1::Request request;
    for (int i = first; i < first + batch; ++i) {
      if (operation == Operation::kGet) {
        request.mutable_get()->add_keys(Key(i));
        continue;
      }
      v1::KeyValue& entry = *request.mutable_put()->add_entries();
      entry.set_key(Key(i));
      entry.set_value(std::string(kValueBytes, 'v'));
    }
    if (operation == Operation::kSet) request.mutable_put()->set_overwrite(true);
    ops.push_back(Op(request));
  }
  return ops;
}

// An answer as long as the coordinator's.
std::string FloorAnswer(Operation operation, int batch) {
  v1::ServerFrame frame;
  frame.set_sequence(100'000);
  v1::Reply& reply = *frame.add_replies();
  reply.set_request_id(100'000);
  if (operation == Operation::kSet) reply.set_revision(100'000);
  for (int i = 0; operation == Operation::kGet && i < batch; ++i) {
    v1::KeyValue& entry = *reply.add_entries();
    entry.set_key(Key(i));
    entry.set_value(std::string(kValueBytes, 'v'));
    entry.set_revision(100'000);
  }
  return frame.SerializeAsString();
}

// A stream that keeps a number of requests in flight, each in a frame of its own. The same code for
// the baseline and for the coordinator.
class LoadStream final {
 public:
  // Makes a ControlStream.
  using MakeStream = std::function<std::unique_ptr<ControlStream>(ControlStream::OnFrame)>;

  LoadStream(const MakeStream& make, std::vector<std::string> ops)
      : ops_(std::move(ops)),
        stream_(make([this](const ScannedFrame& frame) { OnFrame(frame); })) {}

  ControlStream& stream() { return *stream_; }

  void Begin(int window, const std::atomic<bool>& stop, absl::BlockingCounter& running) {
    absl::MutexLock lock(&mu_);
    stop_ = &stop;
    running_ = &running;
    latencies_us_.clear();
    for (int i = 0; i < window; ++i) SendLocked();
  }

  // For the last slice. REQUIRES: it is over.
  const std::vector<double>& latencies_us() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return latencies_us_;
  }

 private:
  void OnFrame(const ScannedFrame& frame) {
    if (frame.replies == 0) return;  // The Welcome.
    absl::MutexLock lock(&mu_);
    const absl::Time now = SteadyClock().Now();
    for (int i = 0; i < frame.replies; ++i) {
      latencies_us_.push_back(absl::ToDoubleMicroseconds(now - started_.front()));
      started_.pop_front();
      if (!stop_->load(std::memory_order_relaxed)) SendLocked();
    }
    if (started_.empty()) running_->DecrementCount();
  }

  void SendLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    started_.push_back(SteadyClock().Now());
    stream_->SendRequest(ops_[next_++ % ops_.size()]);
  }

  const std::vector<std::string> ops_;
  absl::Mutex mu_;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  const std::atomic<bool>* stop_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::BlockingCounter* running_ ABSL_GUARDED_BY(mu_) = nullptr;
  // Answers come in the order of the requests.
  std::deque<absl::Time> started_ ABSL_GUARDED_BY(mu_);
  std::vector<double> latencies_us_ ABSL_GUARDED_BY(mu_);
  // Last: its callbacks use the rest.
  std::unique_ptr<ControlStream> stream_;
};

using LoadStreams = std::vector<std::unique_ptr<LoadStream>>;

LoadResult RunStreamLoad(const ServerProcess& server, const LoadStreams& streams, int inflight,
                         absl::Duration slice) {
  std::atomic<bool> stop = false;
  absl::BlockingCounter running(static_cast<int>(streams.size()));
  const absl::Duration cpu = server.CpuTime();
  const absl::Time begin = SteadyClock().Now();
  for (const auto& stream : streams) {
    stream->Begin(inflight / static_cast<int>(streams.size()), stop, running);
  }
  absl::SleepFor(slice);
  stop.store(true, std::memory_order_relaxed);
  running.Wait();
  const double seconds = absl::ToDoubleSeconds(SteadyClock().Now() - begin);
  const absl::Duration cpu_used = server.CpuTime() - cpu;
  std::vector<double> all;
  for (const auto& stream : streams) {
    all.insert(all.end(), stream->latencies_us().begin(), stream->latencies_us().end());
  }
  const double calls = static_cast<double>(all.size());
  return {.calls_per_s = calls / seconds,
          .p50_us = Percentile(all, 0.5),
          .p99_us = Percentile(all, 0.99),
          .server_cpu_us = absl::ToDoubleMicroseconds(cpu_used) / calls};
}

void BM_Stream(benchmark::State& state, Operation operation, Shape shape, const Plan& plan) {
  const ServerProcess floor(ServerKind::kFloor, 1);
  const ServerProcess coordinator(ServerKind::kCoordinator, 1);
  const std::vector<std::string> ops = Ops(operation, shape.batch);
  LoadStreams floor_streams;
  LoadStreams streams;
  for (int i = 0; i < shape.streams; ++i) {
    floor_streams.push_back(std::make_unique<LoadStream>(
        [&](ControlStream::OnFrame on_frame) {
          return ControlStream::OverGrpc(MakeChannel(floor.address()), kEchoMethod,
                                         std::move(on_frame));
        },
        ops));
    floor_streams.back()->stream().Send(ToBuffer(FloorAnswer(operation, shape.batch)));
    streams.push_back(std::make_unique<LoadStream>(
        [&](ControlStream::OnFrame on_frame) {
          return ControlStream::OverConnection(coordinator.address(), std::move(on_frame));
        },
        ops));
    // Not a rank: a client that uses the store.
    const v1::Hello hello;
    streams.back()->stream().SendRequests(&hello, {});
  }
  {
    // Every key is there before a get. A refused request would end the process.
    ControlRanks setter(coordinator.address(), 1);
    setter.RunAll({{Step{Ops(Operation::kSet, kKeys)}}});
  }
  const absl::Duration slice = absl::Seconds(plan.slice_s);
  RunStreamLoad(floor, floor_streams, shape.inflight, slice);
  RunStreamLoad(coordinator, streams, shape.inflight, slice);

  Comparison rate;
  Comparison p50;
  Comparison cpu;
  std::vector<double> p99_us;
  const double keys = shape.batch;
  for (auto _ : state) {
    const LoadResult floor_load = RunStreamLoad(floor, floor_streams, shape.inflight, slice);
    const LoadResult load = RunStreamLoad(coordinator, streams, shape.inflight, slice);
    rate.Add(floor_load.calls_per_s * keys, load.calls_per_s * keys);
    p50.Add(floor_load.p50_us, load.p50_us);
    cpu.Add(floor_load.server_cpu_us, load.server_cpu_us);
    p99_us.push_back(load.p99_us);
    state.SetIterationTime(1 / load.calls_per_s);
  }
  state.counters["rate"] = rate.measured();
  state.counters["floor_rate"] = rate.floor();
  state.counters["ratio_to_floor"] = rate.ratio();
  state.counters["p50_us"] = p50.measured();
  state.counters["floor_p50_us"] = p50.floor();
  state.counters["p99_us"] = Median(p99_us);
  state.counters["server_cpu_us"] = cpu.measured();
  state.counters["floor_cpu_us"] = cpu.floor();

  const std::string gate =
      absl::StrCat("stream ", operation == Operation::kSet ? "set" : "get", ", ", shape.streams,
                   shape.streams == 1 ? " stream, " : " streams, ", shape.inflight, " in flight",
                   shape.batch == 1 ? "" : absl::StrCat(", ", shape.batch, " keys each"), ": ");
  if (shape.batch == 1) {
    AddGate(gate + "rate", "/s", rate, Bound::kAtLeast, 0.85);
  } else {
    AddGate({.name = gate + "rate",
             .unit = "keys/s",
             .measured = rate.measured(),
             .bound = Bound::kAtLeast,
             .target = 500'000});
  }
  AddGate(gate + "server CPU per request", "us", cpu, Bound::kAtMost, std::nullopt);
}

}  // namespace

void RegisterStreamBenchmarks(const Plan& plan) {
  for (const Operation operation : {Operation::kSet, Operation::kGet}) {
    for (const Shape shape :
         {Shape{1, 1}, Shape{1, 64}, Shape{1, 1000}, Shape{64, 64}, Shape{1, 4, 256}}) {
      if (plan.is_quick && shape.streams == 1 && shape.inflight == 1) continue;
      benchmark::RegisterBenchmark(
          absl::StrCat("BM_Stream_", operation == Operation::kSet ? "Set" : "Get", "/streams:",
                       shape.streams, "/inflight:", shape.inflight, "/batch:", shape.batch)
              .c_str(),
          [operation, shape, plan](benchmark::State& state) {
            BM_Stream(state, operation, shape, plan);
          })
          ->Iterations(plan.rounds)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace ferry::bench
