// SPDX-License-Identifier: Apache-2.0
// Tensors between two processes of this host, by each way, beside what the machine gives at most.
//   build/release/benchmarks/exchange_bench [--benchmark_filter=...]
// Times are those of one way, half a round trip, unless the name says otherwise. Counters: p50, p99
// in microseconds; floor, the same for whoever does nothing else, measured in the same run; ratio,
// of the two medians (or rates).
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "benchmarks/support/exchange_peer.h"

namespace ferry::bench {
namespace {

constexpr absl::Duration kPolling = absl::Hours(1);
constexpr absl::Duration kAdaptive = absl::Microseconds(20);

struct Samples {
  std::vector<double> seconds;
  double At(double quantile) {
    const auto rank = static_cast<size_t>(quantile * static_cast<double>(seconds.size() - 1));
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<long>(rank), seconds.end());
    return seconds[rank];
  }
};

void Report(benchmark::State& state, Samples& samples, double floor_seconds) {
  state.counters["p50_us"] = samples.At(0.5) * 1e6;
  state.counters["p99_us"] = samples.At(0.99) * 1e6;
  if (floor_seconds > 0) {
    state.counters["floor_us"] = floor_seconds * 1e6;
    state.counters["ratio"] = samples.At(0.5) / floor_seconds;
  }
}

// Round trips of `bytes`, receives posted first. Half of each.
Samples PingPong(benchmark::State& state, ExchangePeer& peer, EchoCommand command,
                 size_t sent_bytes, bool whole_trip = false) {
  Exchange& exchange = peer.exchange();
  const Tensor ping = ArenaTensor(exchange, sent_bytes);
  Tensor buffer;
  if (command.into && !command.short_answers) buffer = ArenaTensor(exchange, command.bytes);
  const auto step = peer.Begin(command);
  // In batches, as the other side.
  const int batch = command.into && !command.short_answers ? 1 : kBatch;
  std::vector<PostedRecv> posted(static_cast<size_t>(2 * batch));
  Samples samples;
  int next = 0;
  for (PostedRecv& each : posted) each.Post(*step, peer.pong(), buffer, exchange.loop());
  const auto round = [&] {
    PostedRecv& each = posted[next];
    const absl::Time start = SteadyClock().Now();
    step->Send(peer.ping(), ping).IgnoreError();
    each.Wait(exchange.loop());
    const double seconds = absl::ToDoubleSeconds(SteadyClock().Now() - start);
    each.Drop();
    if (++next % batch == 0) {
      for (int i = next - batch; i < next; ++i) {
        posted[i].Post(*step, peer.pong(), buffer, exchange.loop());
      }
      next %= 2 * batch;
    }
    return whole_trip ? seconds : seconds / 2;
  };
  for (int i = 0; i < 20; ++i) round();
  for (auto _ : state) {
    const double seconds = round();
    samples.seconds.push_back(seconds);
    state.SetIterationTime(seconds);
  }
  // Those that are open take the last answer, and the end of the step.
  peer.End();
  return samples;
}

// 8 bytes, keyed, in shared memory; both sides look all the time.
void BM_Shm_8B_Polling(benchmark::State& state) {
  const double floor = SpinFloor();
  ExchangePeer peer({.transport = "shm", .spin = kPolling});
  Samples samples = PingPong(state, peer, {.bytes = 8}, 8);
  Report(state, samples, floor);
}

// The same, whole round trip, where nobody looks and the kernel wakes.
void BM_Shm_8B_Blocking_RoundTrip(benchmark::State& state) {
  const double floor = BlockingFloor();
  ExchangePeer peer({.transport = "shm", .spin = absl::ZeroDuration()});
  Samples samples = PingPong(state, peer, {.bytes = 8}, 8, true);
  Report(state, samples, floor);
}

// As users get it: looks for 20 us, then sleeps.
void BM_Shm_8B_SpinThenSleep(benchmark::State& state) {
  const double floor = SpinFloor();
  ExchangePeer peer({.transport = "shm", .spin = kAdaptive});
  Samples samples = PingPong(state, peer, {.bytes = 8}, 8);
  Report(state, samples, floor);
}

// Messages of 8 bytes, many under way; per message.
void BM_Shm_8B_Messages(benchmark::State& state) {
  constexpr int kWindow = 256;
  ExchangePeer peer({.transport = "shm", .spin = kPolling});
  Exchange& exchange = peer.exchange();
  const Tensor ping = ArenaTensor(exchange, 8);
  const auto step = peer.Begin({.bytes = 8, .window = kWindow});
  PostedRecv posted;
  posted.Post(*step, peer.pong(), Tensor(), exchange.loop());
  for (auto _ : state) {
    for (int i = 0; i < kWindow; ++i) step->Send(peer.ping(), ping).IgnoreError();
    posted.Wait(exchange.loop());
    posted.Drop();
    posted.Post(*step, peer.pong(), Tensor(), exchange.loop());
  }
  peer.End();
  state.SetItemsProcessed(state.iterations() * kWindow);
}

// Memory of the arena, handed over: whatever its size.
void BM_Shm_HandOver_Polling(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const double floor = SpinFloor();
  ExchangePeer peer({.transport = "shm", .spin = kPolling});
  Samples samples = PingPong(state, peer, {.bytes = bytes}, bytes);
  Report(state, samples, floor);
}

// Into a buffer of the receiver; answers are short.
void BM_Shm_IntoBuffer(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const double floor = MemcpyFloor(bytes);
  ExchangePeer peer({.transport = "shm", .spin = kAdaptive, .pin = false});
  Samples samples =
      PingPong(state, peer, {.bytes = bytes, .into = true, .short_answers = true}, bytes, true);
  const double rate = static_cast<double>(bytes) / samples.At(0.5);
  state.counters["GB/s"] = rate / 1e9;
  state.counters["memcpy_GB/s"] = floor / 1e9;
  state.counters["ratio"] = rate / floor;
}

void BM_Tcp_8B_Polling_RoundTrip(benchmark::State& state) {
  const double floor = TcpSpinFloor();
  ExchangePeer peer({.transport = "tcp", .spin = kPolling});
  Samples samples = PingPong(state, peer, {.bytes = 8}, 8, true);
  Report(state, samples, floor);
}

// By as many streams as raw sockets.
void BM_Tcp_Stream(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const int streams = static_cast<int>(state.range(1));
  const StreamFloor floor = TcpStreamFloor(streams, bytes);
  ExchangePeer peer(
      {.transport = "tcp", .spin = kAdaptive, .tcp_connections = streams, .pin = false});
  const double cpu = peer.CpuSeconds();
  Samples samples =
      PingPong(state, peer, {.bytes = bytes, .into = true, .short_answers = true}, bytes, true);
  const double total =
      static_cast<double>(bytes) * static_cast<double>(samples.seconds.size() + 20);
  const double rate = static_cast<double>(bytes) / samples.At(0.5);
  state.counters["GB/s"] = rate / 1e9;
  state.counters["raw_GB/s"] = floor.bytes_per_second / 1e9;
  state.counters["ratio"] = rate / floor.bytes_per_second;
  state.counters["cpu_s/GB"] = (peer.CpuSeconds() - cpu) / total * 1e9;
  state.counters["raw_cpu_s/GB"] = floor.cpu_seconds_per_gb;
}

BENCHMARK(BM_Shm_8B_Polling)->UseManualTime()->Iterations(200'000);
BENCHMARK(BM_Shm_8B_Blocking_RoundTrip)->UseManualTime()->Iterations(10'000);
BENCHMARK(BM_Shm_8B_SpinThenSleep)->UseManualTime()->Iterations(100'000);
BENCHMARK(BM_Shm_8B_Messages)->UseRealTime()->Iterations(10'000);
BENCHMARK(BM_Shm_HandOver_Polling)
    ->UseManualTime()
    ->Iterations(50'000)
    ->Arg(4096)
    ->Arg(64 << 10)
    ->Arg(64 << 20)
    ->Arg(1 << 30);
BENCHMARK(BM_Shm_IntoBuffer)->UseManualTime()->Iterations(40)->Arg(64 << 20);
BENCHMARK(BM_Shm_IntoBuffer)->UseManualTime()->Iterations(8)->Arg(1 << 30);
BENCHMARK(BM_Tcp_8B_Polling_RoundTrip)->UseManualTime()->Iterations(50'000);
BENCHMARK(BM_Tcp_Stream)->UseManualTime()->Iterations(30)->Args({64 << 20, 1})->Args({64 << 20, 2});

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
