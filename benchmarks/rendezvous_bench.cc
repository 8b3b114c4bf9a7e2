// SPDX-License-Identifier: Apache-2.0
// Send and receive through the table of one step, in one process.
//
//   build/release/benchmarks/rendezvous_bench
//
// Baseline, in the same run: two uncontended locks and one allocation of the entry's size, which is
// the minimum for a pair. Estimate: 75 ns for a pair.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/spin_lock.h"
#include "rendezvous/local_rendezvous.h"

namespace ferry {
namespace {

constexpr int kKeys = 64;

// By one thread: no other uses them.
std::vector<RendezvousKey> Keys(int thread) {
  std::vector<RendezvousKey> keys;
  for (int i = 0; i < kKeys; ++i) {
    keys.push_back(*RendezvousKey::Parse(RendezvousKey::Text(
        "/job:worker/replica:0/task:0/device:CPU:0", 1, "/job:worker/replica:0/task:0/device:CPU:1",
        absl::StrCat("edge_", thread, "_", i))));
  }
  return keys;
}

Tensor Value() { return *Tensor::Allocate(DataType::kFloat, *Shape::Create({2})); }

LocalRendezvous& Shared() {
  static LocalRendezvous* const rendezvous = new LocalRendezvous(SteadyClock());
  return *rendezvous;
}

void BM_Local_Floor(benchmark::State& state) {
  SpinLock mu;
  for (auto _ : state) {
    mu.Lock();
    void* entry = std::malloc(320);
    benchmark::DoNotOptimize(entry);
    mu.Unlock();
    mu.Lock();
    std::free(entry);
    mu.Unlock();
  }
}

// The value first, then its receiver, on the same thread.
void BM_Local_SendThenRecv(benchmark::State& state) {
  const std::vector<RendezvousKey> keys = Keys(state.thread_index());
  const Tensor value = Value();
  LocalRendezvous& rendezvous = Shared();
  size_t next = 0;
  int64_t received = 0;
  for (auto _ : state) {
    const RendezvousKey& key = keys[next++ % kKeys];
    rendezvous.Send(key, value).IgnoreError();
    rendezvous.RecvAsync(key, {}, [&received](absl::Status, Received) { ++received; });
  }
  if (received != state.iterations()) state.SkipWithError("values were lost");
  state.SetItemsProcessed(state.iterations());
}

// The receiver first, as workers do at the start of a step.
void BM_Local_RecvThenSend(benchmark::State& state) {
  const std::vector<RendezvousKey> keys = Keys(state.thread_index());
  const Tensor value = Value();
  LocalRendezvous& rendezvous = Shared();
  size_t next = 0;
  int64_t received = 0;
  for (auto _ : state) {
    const RendezvousKey& key = keys[next++ % kKeys];
    rendezvous.RecvAsync(key, {}, [&received](absl::Status, Received) { ++received; });
    rendezvous.Send(key, value).IgnoreError();
  }
  if (received != state.iterations()) state.SkipWithError("values were lost");
  state.SetItemsProcessed(state.iterations());
}

// 64 values in flight at a time.
void BM_Local_SendManyThenRecv(benchmark::State& state) {
  const std::vector<RendezvousKey> keys = Keys(state.thread_index());
  const Tensor value = Value();
  LocalRendezvous& rendezvous = Shared();
  int64_t received = 0;
  for (auto _ : state) {
    for (const RendezvousKey& key : keys) rendezvous.Send(key, value).IgnoreError();
    for (const RendezvousKey& key : keys) {
      rendezvous.RecvAsync(key, {}, [&received](absl::Status, Received) { ++received; });
    }
  }
  if (received != state.iterations() * kKeys) state.SkipWithError("values were lost");
  state.SetItemsProcessed(state.iterations() * kKeys);
}

// With a deadline, which every receive of a careful user has.
void BM_Local_RecvWithDeadlineThenSend(benchmark::State& state) {
  const std::vector<RendezvousKey> keys = Keys(state.thread_index());
  const Tensor value = Value();
  LocalRendezvous& rendezvous = Shared();
  const absl::Time deadline = SteadyClock().Now() + absl::Hours(1);
  size_t next = 0;
  int64_t received = 0;
  for (auto _ : state) {
    const RendezvousKey& key = keys[next++ % kKeys];
    rendezvous.RecvAsync(key, {.deadline = deadline},
                         [&received](absl::Status, Received) { ++received; });
    rendezvous.Send(key, value).IgnoreError();
  }
  if (received != state.iterations()) state.SkipWithError("values were lost");
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Local_Floor)->ThreadRange(1, 2);
BENCHMARK(BM_Local_SendThenRecv)->ThreadRange(1, 2);
BENCHMARK(BM_Local_RecvThenSend)->ThreadRange(1, 2);
BENCHMARK(BM_Local_SendManyThenRecv)->ThreadRange(1, 2);
BENCHMARK(BM_Local_RecvWithDeadlineThenSend)->ThreadRange(1, 2);

}  // namespace
}  // namespace ferry

BENCHMARK_MAIN();
