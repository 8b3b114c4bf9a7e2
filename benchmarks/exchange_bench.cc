// SPDX-License-Identifier: Apache-2.0
// Tensors between two processes of this host, by each path, next to the limits of the machine.
//
//   build/release/benchmarks/exchange_bench [--benchmark_filter=...]
//
// Times are those of one direction, half a round trip, unless the name says otherwise. Counters:
// p50, p99 in microseconds; floor, the same without other work, measured in the same run; ratio, of
// the two medians (or rates).
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "benchmarks/support/transfer_peer.h"

namespace ferry::bench {
namespace {

constexpr absl::Duration kPolling = absl::Hours(1);
constexpr absl::Duration kAdaptive = absl::Microseconds(20);
constexpr int kWarmUps = 1000;

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

// Round trips within a step of their own, receives posted first.
class PingPong final {
 public:
  PingPong(TransferPeer& peer, EchoCommand command, size_t sent_bytes, int warm_up = 20)
      : peer_(peer),
        loop_(peer.transfer_engine().loop()),
        // In batches, as the other side.
        batch_(command.into && !command.short_answers ? 1 : kBatch),
        ping_(ArenaTensor(peer.transfer_engine(), sent_bytes)),
        posted_(static_cast<size_t>(2 * batch_)) {
    if (command.into && !command.short_answers) {
      buffer_ = ArenaTensor(peer.transfer_engine(), command.bytes);
    }
    step_ = peer.Begin(command);
    for (PostedRecv& each : posted_) each.Post(*step_, peer.pong(), buffer_, loop_);
    for (int i = 0; i < warm_up; ++i) Round();
  }
  // The receives that are open take the last answer, and the end of the step.
  ~PingPong() { peer_.End(); }

  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;

  // Seconds of one.
  double Round() { return Round(ping_); }
  double Round(const Tensor& ping) {
    PostedRecv& each = posted_[next_];
    const absl::Time start = SteadyClock().Now();
    step_->Send(peer_.ping(), ping).IgnoreError();
    each.Wait(loop_);
    const double seconds = absl::ToDoubleSeconds(SteadyClock().Now() - start);
    each.Drop();
    if (++next_ % batch_ == 0) {
      for (size_t i = next_ - batch_; i < next_; ++i) {
        posted_[i].Post(*step_, peer_.pong(), buffer_, loop_);
      }
      next_ %= 2 * batch_;
    }
    return seconds;
  }

 private:
  TransferPeer& peer_;
  EventLoop& loop_;
  const size_t batch_;
  const Tensor ping_;
  Tensor buffer_;
  std::shared_ptr<RemoteRendezvous> step_;
  std::vector<PostedRecv> posted_;
  size_t next_ = 0;
};

// As many as the benchmark requests; half of each, or the whole round trip.
Samples Measure(benchmark::State& state, TransferPeer& peer, EchoCommand command, size_t sent_bytes,
                bool whole_trip = false) {
  PingPong rounds(peer, command, sent_bytes);
  Samples samples;
  for (auto _ : state) {
    const double seconds = whole_trip ? rounds.Round() : rounds.Round() / 2;
    samples.seconds.push_back(seconds);
    state.SetIterationTime(seconds);
  }
  return samples;
}

// 8 bytes, keyed, in shared memory; both sides poll all the time, and a round begins when the one
// before it has ended. Arg: whether they are received into a buffer.
void BM_Shm_8B_Polling(benchmark::State& state) {
  const double floor = SpinFloor();
  TransferPeer peer({.transport = "shm", .spin = kPolling});
  Samples samples = Measure(state, peer, {.bytes = 8, .into = state.range(0) != 0}, 8);
  Report(state, samples, floor);
}

// The same, whole round trip, where no thread polls and the kernel wakes.
void BM_Shm_8B_Blocking_RoundTrip(benchmark::State& state) {
  const double floor = BlockingFloor();
  TransferPeer peer({.transport = "shm", .spin = absl::ZeroDuration()});
  Samples samples = Measure(state, peer, {.bytes = 8}, 8, true);
  Report(state, samples, floor);
}

// As users get it: polls for 20 us, then sleeps.
void BM_Shm_8B_SpinThenSleep(benchmark::State& state) {
  const double floor = SpinFloor();
  TransferPeer peer({.transport = "shm", .spin = kAdaptive});
  Samples samples = Measure(state, peer, {.bytes = 8}, 8);
  Report(state, samples, floor);
}

// Messages of 8 bytes, many in flight; per message.
void BM_Shm_8B_Messages(benchmark::State& state) {
  constexpr int kWindow = 256;
  TransferPeer peer({.transport = "shm", .spin = kPolling});
  TransferEngine& engine = peer.transfer_engine();
  const Tensor ping = ArenaTensor(engine, 8);
  const auto step = peer.Begin({.bytes = 8, .window = kWindow});
  PostedRecv posted;
  posted.Post(*step, peer.pong(), Tensor(), engine.loop());
  for (auto _ : state) {
    for (int i = 0; i < kWindow; ++i) step->Send(peer.ping(), ping).IgnoreError();
    posted.Wait(engine.loop());
    posted.Drop();
    posted.Post(*step, peer.pong(), Tensor(), engine.loop());
  }
  peer.End();
  state.SetItemsProcessed(state.iterations() * kWindow);
}

void ReportSmall(benchmark::State& state, const SmallTensorSender& sender) {
  state.counters["sender_allocs"] = sender.allocations();
  state.counters["receiver_allocs"] = sender.page().allocations;
  state.SetLabel(sender.page().path);
  if (sender.page().wrong > 0) state.SkipWithError("values were wrong");
}

// Streams of 8 bytes in shared memory with receives posted first, two windows of 256 in flight; per
// message. An iteration is a stream of 400 windows in a step of its own; per_s is the median. Args:
// the names that are used in turns, 0 if each message has its own; whether they are received into a
// buffer; how many are sent, and posted, at a time.
void BM_Shm_8B_Stream(benchmark::State& state) {
  constexpr int64_t kWindow = 256;
  constexpr int64_t kWindows = 400;
  constexpr int64_t kMessages = kWindow * kWindows;
  TransferPeer peer({.transport = "shm", .spin = kPolling});
  Samples samples;
  for (auto _ : state) {
    SmallTensorSender sender(peer, {.values = kMessages,
                                    .keys = state.range(0) > 0 ? state.range(0) : kMessages,
                                    .batch = state.range(2),
                                    .window = kWindow,
                                    .into = state.range(1) != 0});
    const absl::Time start = SteadyClock().Now();
    for (int64_t i = 0; i < kWindows; ++i) sender.Window();
    sender.Finish();
    const double seconds = absl::ToDoubleSeconds(SteadyClock().Now() - start);
    samples.seconds.push_back(seconds / kMessages);
    state.SetIterationTime(seconds);
    ReportSmall(state, sender);
  }
  state.counters["per_s"] = 1 / samples.At(0.5);
  state.counters["per_s_best"] = 1 / samples.At(0);
}

// 8 bytes that are received only when they have been sent: from Send until they are received, and
// (recv_p50_us, recv_p99_us) from posting the receive. Args: names, in turns; into a buffer;
// whether the receiver leads its loop while it waits for the word that says so, or spins on it.
void BM_Shm_8B_Unexpected(benchmark::State& state) {
  const double floor = SpinFloor();
  TransferPeer peer({.transport = "shm", .spin = kPolling});
  SmallTensorSender sender(peer, {.values = static_cast<int64_t>(state.max_iterations) + kWarmUps,
                                  .keys = state.range(0),
                                  .into = state.range(1) != 0,
                                  .unexpected = true,
                                  .leads = state.range(2) != 0});
  Samples samples;
  Samples receives;
  double receive = 0;
  for (int i = 0; i < kWarmUps; ++i) sender.Unexpected(receive);
  for (auto _ : state) {
    const double seconds = sender.Unexpected(receive);
    samples.seconds.push_back(seconds);
    receives.seconds.push_back(receive);
    state.SetIterationTime(seconds);
  }
  Report(state, samples, floor);
  state.counters["recv_p50_us"] = receives.At(0.5) * 1e6;
  state.counters["recv_p99_us"] = receives.At(0.99) * 1e6;
  ReportSmall(state, sender);
}

// Memory of the arena, zero-copy: of any size.
void BM_Shm_HandOver_Polling(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const double floor = SpinFloor();
  TransferPeer peer({.transport = "shm", .spin = kPolling});
  Samples samples = Measure(state, peer, {.bytes = bytes}, bytes);
  Report(state, samples, floor);
}

// Into a buffer of the receiver; answers are short. Alternating with memcpy on one thread between a
// program's own buffers, with the same between blocks of an arena, whose pages may be larger
// (`ratio_arena`), and with two threads that copy there as fast as memory permits (`of_limit`).
void IntoBuffer(benchmark::State& state, const TransferPeer::Options& options) {
  const auto bytes = static_cast<size_t>(state.range(0));
  TransferPeer peer(options);
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  const Tensor arena_from = ArenaTensor(peer.transfer_engine(), bytes);
  Tensor arena_to = ArenaTensor(peer.transfer_engine(), bytes);
  const auto time_copy = [bytes](void* into, const void* out_of) {
    const absl::Time start = SteadyClock().Now();
    std::memcpy(into, out_of, bytes);
    benchmark::ClobberMemory();
    return absl::ToDoubleSeconds(SteadyClock().Now() - start);
  };
  Samples floors, arena_floors, limits, samples, ratios, arena_ratios, of_limit, cpu;
  PingPong rounds(peer, {.bytes = bytes, .into = true, .short_answers = true}, bytes, 2);
  for (auto _ : state) {
    floors.seconds.push_back(time_copy(to.data(), from.data()));
    arena_floors.seconds.push_back(time_copy(arena_to.mutable_data(), arena_from.data()));
    if (!options.one_core) {
      limits.seconds.push_back(StreamedCopySeconds(static_cast<char*>(arena_to.mutable_data()),
                                                   static_cast<const char*>(arena_from.data()),
                                                   bytes));
    }
    const double before = peer.CpuSeconds();
    samples.seconds.push_back(rounds.Round());
    cpu.seconds.push_back(peer.CpuSeconds() - before);
    ratios.seconds.push_back(floors.seconds.back() / samples.seconds.back());
    arena_ratios.seconds.push_back(arena_floors.seconds.back() / samples.seconds.back());
    if (!options.one_core) {
      of_limit.seconds.push_back(limits.seconds.back() / samples.seconds.back());
    }
    state.SetIterationTime(samples.seconds.back());
  }
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  state.counters["GB/s"] = gigabytes / samples.At(0.5);
  state.counters["memcpy_GB/s"] = gigabytes / floors.At(0.5);
  state.counters["ratio"] = ratios.At(0.5);
  state.counters["arena_memcpy_GB/s"] = gigabytes / arena_floors.At(0.5);
  state.counters["ratio_arena"] = arena_ratios.At(0.5);
  state.counters["cpu_s/GB"] = cpu.At(0.5) / gigabytes;
  if (options.one_core) return;
  state.counters["limit_GB/s"] = gigabytes / limits.At(0.5);
  state.counters["of_limit"] = of_limit.At(0.5);
}

void BM_Shm_IntoBuffer(benchmark::State& state) {
  IntoBuffer(state, {.transport = "shm", .spin = kAdaptive, .pin = false});
}

// One core for both processes, and for memcpy.
void BM_Shm_IntoBuffer_OneCore(benchmark::State& state) {
  IntoBuffer(state, {.transport = "shm", .spin = kAdaptive, .one_core = true});
}

// Memory unknown to the other process, until its answer arrives; alternating with a memfd that is
// sent through a Unix socket, mapped and answered. Whole round trips. `checked`: the baseline with
// a check of the memfd's size and seals, without which its reader can be made to crash.
void BM_Shm_FirstHandOver_RoundTrip(benchmark::State& state) {
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr int kRounds = 10;
  // Each tensor has a segment of its own.
  TransferPeer peer({.transport = "shm", .spin = kPolling, .segment_bytes = kBytes / 2});
  Samples floors;
  Samples checked_floors;
  Samples samples;
  Samples ratios;
  Samples checked_ratios;
  // Given back, it would be the next one's.
  std::vector<Tensor> kept;
  for (auto _ : state) {
    Samples raw = {peer.RawDescriptors(kRounds, kBytes, /*checks=*/false)};
    Samples checked = {peer.RawDescriptors(kRounds, kBytes, /*checks=*/true)};
    Samples turn;
    {
      PingPong rounds(peer, {.bytes = 8}, 8);
      for (int i = 0; i < kRounds; ++i) {
        kept.push_back(ArenaTensor(peer.transfer_engine(), kBytes));
        turn.seconds.push_back(rounds.Round(kept.back()));
      }
    }
    floors.seconds.insert(floors.seconds.end(), raw.seconds.begin(), raw.seconds.end());
    checked_floors.seconds.insert(checked_floors.seconds.end(), checked.seconds.begin(),
                                  checked.seconds.end());
    samples.seconds.insert(samples.seconds.end(), turn.seconds.begin(), turn.seconds.end());
    ratios.seconds.push_back(turn.At(0.5) / raw.At(0.5));
    checked_ratios.seconds.push_back(turn.At(0.5) / checked.At(0.5));
    state.SetIterationTime(turn.At(0.5));
  }
  Report(state, samples, floors.At(0.5));
  state.counters["ratio"] = ratios.At(0.5);
  state.counters["checked_us"] = checked_floors.At(0.5) * 1e6;
  state.counters["ratio_checked"] = checked_ratios.At(0.5);
}

// Tensors that are made, filled, sent, read and dropped one after the other: page faults of both
// processes, per round.
void BM_Shm_Recycled_PageFaults(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  TransferPeer peer({.transport = "shm", .spin = kPolling});
  PingPong rounds(peer, {.bytes = 8, .touches = true}, 8);
  const auto round = [&] { return rounds.Round(ArenaTensor(peer.transfer_engine(), bytes)); };
  for (int i = 0; i < 20; ++i) round();
  const int64_t before = peer.PageFaults();
  for (auto _ : state) state.SetIterationTime(round());
  state.counters["faults"] =
      static_cast<double>(peer.PageFaults() - before) / static_cast<double>(state.iterations());
}

// Alternating with raw sockets, a thousand rounds each: both vary with the machine's load. An
// iteration is one alternation; ratio, the median over the alternations.
void BM_Tcp_8B_Polling_RoundTrip(benchmark::State& state) {
  constexpr int kRounds = 1000;
  TransferPeer peer({.transport = "tcp", .spin = kPolling});
  Samples samples;
  Samples floors;
  Samples ratios;
  for (auto _ : state) {
    Samples raw = {peer.RawTcp(kRounds)};
    Samples turn;
    {
      PingPong rounds(peer, {.bytes = 8}, 8);
      for (int i = 0; i < kRounds; ++i) turn.seconds.push_back(rounds.Round());
    }
    samples.seconds.insert(samples.seconds.end(), turn.seconds.begin(), turn.seconds.end());
    floors.seconds.insert(floors.seconds.end(), raw.seconds.begin(), raw.seconds.end());
    ratios.seconds.push_back(turn.At(0.5) / raw.At(0.5));
    state.SetIterationTime(turn.At(0.5));
  }
  Report(state, samples, floors.At(0.5));
  state.counters["ratio"] = ratios.At(0.5);
  state.counters["ratio_p25"] = ratios.At(0.25);
  state.counters["ratio_p75"] = ratios.At(0.75);
}

// Small tensors in batches of 64 over TCP, alternating with raw sockets that send as many bytes for
// each batch by one call; per message. Args: bytes of a tensor. An iteration is one alternation of
// 512 batches, two windows of 8 in flight.
void BM_Tcp_Batches(benchmark::State& state) {
  constexpr int kBatch = 64;
  constexpr int kWindow = 8;
  constexpr int kBatches = 512;
  constexpr double kMessages = kBatch * kBatches;
  const auto bytes = static_cast<size_t>(state.range(0));
  TransferPeer peer({.transport = "tcp", .spin = kPolling});
  Samples samples;
  Samples floors;
  Samples ratios;
  for (auto _ : state) {
    floors.seconds.push_back(peer.RawBatches(kBatches, bytes * kBatch, kWindow) / kMessages);
    SmallTensorSender sender(peer, {.values = kBatch * kBatches,
                                    .bytes = bytes,
                                    .keys = kBatch * kWindow,
                                    .batch = kBatch,
                                    .window = kBatch * kWindow,
                                    .into = true});
    const absl::Time start = SteadyClock().Now();
    for (int i = 0; i < kBatches / kWindow; ++i) sender.Window();
    sender.Finish();
    samples.seconds.push_back(absl::ToDoubleSeconds(SteadyClock().Now() - start) / kMessages);
    ratios.seconds.push_back(floors.seconds.back() / samples.seconds.back());
    state.SetIterationTime(samples.seconds.back() * kMessages);
    ReportSmall(state, sender);
  }
  state.counters["per_s"] = 1 / samples.At(0.5);
  state.counters["raw_per_s"] = 1 / floors.At(0.5);
  state.counters["ratio"] = ratios.At(0.5);
  state.counters["ratio_p25"] = ratios.At(0.25);
  state.counters["ratio_p75"] = ratios.At(0.75);
}

// By as many streams as raw sockets, alternating with them, a few rounds each. An iteration is one
// alternation.
void BM_Tcp_Stream(benchmark::State& state) {
  constexpr int kRounds = 3;
  const auto bytes = static_cast<size_t>(state.range(0));
  const int streams = static_cast<int>(state.range(1));
  TransferPeer peer(
      {.transport = "tcp", .spin = kAdaptive, .tcp_connections = streams, .pin = false});
  Samples floors, samples, ratios, raw_cpu, cpu;
  for (auto _ : state) {
    Samples raw, turn;
    peer.RawStreams(bytes);
    const double start = peer.CpuSeconds();
    for (int i = 0; i < kRounds; ++i) raw.seconds.push_back(peer.RawStreams(bytes));
    raw_cpu.seconds.push_back((peer.CpuSeconds() - start) / kRounds);
    {
      PingPong rounds(peer, {.bytes = bytes, .into = true, .short_answers = true}, bytes, 1);
      const double middle = peer.CpuSeconds();
      for (int i = 0; i < kRounds; ++i) turn.seconds.push_back(rounds.Round());
      cpu.seconds.push_back((peer.CpuSeconds() - middle) / kRounds);
    }
    floors.seconds.insert(floors.seconds.end(), raw.seconds.begin(), raw.seconds.end());
    samples.seconds.insert(samples.seconds.end(), turn.seconds.begin(), turn.seconds.end());
    ratios.seconds.push_back(raw.At(0.5) / turn.At(0.5));
    state.SetIterationTime(turn.At(0.5));
  }
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  state.counters["GB/s"] = gigabytes / samples.At(0.5);
  state.counters["raw_GB/s"] = gigabytes / floors.At(0.5);
  state.counters["ratio"] = ratios.At(0.5);
  state.counters["ratio_p25"] = ratios.At(0.25);
  state.counters["ratio_p75"] = ratios.At(0.75);
  state.counters["cpu_s/GB"] = cpu.At(0.5) / gigabytes;
  state.counters["raw_cpu_s/GB"] = raw_cpu.At(0.5) / gigabytes;
}

BENCHMARK(BM_Shm_8B_Polling)->UseManualTime()->Iterations(200'000)->ArgName("into")->Arg(0)->Arg(1);
BENCHMARK(BM_Shm_8B_Blocking_RoundTrip)->UseManualTime()->Iterations(10'000);
BENCHMARK(BM_Shm_8B_SpinThenSleep)->UseManualTime()->Iterations(100'000);
BENCHMARK(BM_Shm_8B_Messages)->UseRealTime()->Iterations(10'000);
BENCHMARK(BM_Shm_8B_Stream)
    ->UseManualTime()
    ->Iterations(10)
    ->ArgNames({"names", "into", "batch"})
    ->Args({0, 1, 1})
    ->Args({0, 0, 1})
    ->Args({1024, 1, 1})
    ->Args({1024, 0, 1})
    ->Args({1, 1, 1})
    ->Args({0, 1, 64})
    ->Args({0, 0, 64})
    ->Args({1024, 1, 64});
BENCHMARK(BM_Shm_8B_Unexpected)
    ->UseManualTime()
    ->Iterations(50'000)
    ->ArgNames({"names", "into", "leads"})
    ->Args({1, 1, 1})
    ->Args({1, 0, 1})
    ->Args({1024, 1, 1})
    ->Args({1, 1, 0});
BENCHMARK(BM_Shm_HandOver_Polling)
    ->UseManualTime()
    ->Iterations(50'000)
    ->Arg(4096)
    ->Arg(64 << 10)
    ->Arg(64 << 20)
    ->Arg(1 << 30);
BENCHMARK(BM_Shm_IntoBuffer)->UseManualTime()->Iterations(40)->Arg(64 << 20);
BENCHMARK(BM_Shm_IntoBuffer)->UseManualTime()->Iterations(8)->Arg(1 << 30);
BENCHMARK(BM_Shm_IntoBuffer_OneCore)->UseManualTime()->Iterations(40)->Arg(64 << 20);
BENCHMARK(BM_Shm_IntoBuffer_OneCore)->UseManualTime()->Iterations(8)->Arg(1 << 30);
BENCHMARK(BM_Shm_FirstHandOver_RoundTrip)->UseManualTime()->Iterations(50);
BENCHMARK(BM_Shm_Recycled_PageFaults)
    ->UseManualTime()
    ->Iterations(2'000)
    ->Arg(64 << 10)
    ->Arg(8 << 20);
BENCHMARK(BM_Tcp_8B_Polling_RoundTrip)->UseManualTime()->Iterations(50);
BENCHMARK(BM_Tcp_Batches)
    ->UseManualTime()
    ->Iterations(10)
    ->ArgName("bytes")
    ->Arg(8)
    ->Arg(512)
    ->Arg(4096);
BENCHMARK(BM_Tcp_Stream)
    ->UseManualTime()
    ->Iterations(100)
    ->Args({64 << 20, 1})
    ->Args({64 << 20, 2});

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
