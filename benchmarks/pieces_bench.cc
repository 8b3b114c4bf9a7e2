// SPDX-License-Identifier: Apache-2.0
// Steps of each message and tensor: keys, frames of a control channel, memory of the arena,
// TensorProto, and the choice of a path; one thread each.
//
//   build/release/benchmarks/pieces_bench
//
// Next to each, in the same run, a baseline (BM_..._Floor): only the indispensable work, by the
// machine or by a widely used library.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"

#include "rendezvous/key.h"
#include "tensor/check_values.h"
#include "tensor/host_arena.h"
#include "tensor/tensor_proto.h"
#include "transport/control/shm_ring.h"
#include "transport/path_cost_estimator.h"
#include "transport/transports.h"

namespace ferry {
namespace {

std::string KeyText() {
  return RendezvousKey::Text("/job:worker/replica:0/task:3/device:GPU:1", 0x123456789abcdef0,
                             "/job:worker/replica:0/task:7/device:GPU:0", "layer_17/gradient:0");
}

// As a request from a control channel is parsed: five parts, two devices, a hash.
void BM_Key_Parse(benchmark::State& state) {
  const std::string text = KeyText();
  for (auto _ : state) {
    const absl::StatusOr<RendezvousKey> key = RendezvousKey::Parse(text);
    if (!key.ok()) return state.SkipWithError("it is no key");
    benchmark::DoNotOptimize(key->hash());
  }
  state.SetItemsProcessed(state.iterations());
}

// A copy of the text, and its hash.
void BM_Key_Floor(benchmark::State& state) {
  const std::string text = KeyText();
  for (auto _ : state) {
    auto copy = std::make_unique<std::string>(text);
    benchmark::DoNotOptimize(copy->data());
    benchmark::DoNotOptimize(RendezvousKey::HashOf(*copy));
  }
  state.SetItemsProcessed(state.iterations());
}

constexpr size_t kRingBytes = size_t{512} << 10;

// Into the ring and out of it, by one thread: no other core has its lines.
void BM_Frame_WriteThenRead(benchmark::State& state) {
  const std::string body(static_cast<size_t>(state.range(0)), 'x');
  void* const memory = std::aligned_alloc(4096, kRingControlBytes + kRingBytes);
  std::memset(memory, 0, kRingControlBytes + kRingBytes);
  RingWriter writer(memory, kRingBytes);
  RingReader reader(memory, kRingBytes);
  for (auto _ : state) {
    if (!writer.Write(7, 0, {body}) || !reader.HasFrame()) {
      state.SkipWithError("there is no frame");
      break;
    }
    const absl::StatusOr<RingFrame> frame = reader.Read();
    if (!frame.ok() || frame->type != 7 || frame->body.size() != body.size()) {
      state.SkipWithError("it is another frame");
      break;
    }
    benchmark::DoNotOptimize(frame->body.back());
    reader.Release();
    reader.Publish();
  }
  std::free(memory);
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// Writes the body, reads its end, and zeroes it afterwards.
void BM_Frame_Floor(benchmark::State& state) {
  const std::string body(static_cast<size_t>(state.range(0)), 'x');
  std::vector<char> ring(kRingBytes);
  size_t at = 0;
  for (auto _ : state) {
    std::memcpy(ring.data() + at, body.data(), body.size());
    benchmark::DoNotOptimize(ring[at + body.size() - 1]);
    benchmark::ClobberMemory();
    std::memset(ring.data() + at, 0, body.size());
    at += body.size();
    if (at + body.size() > ring.size()) at = 0;
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// A buffer that was there before, and back again.
void BM_Arena_AllocateThenRelease(benchmark::State& state) {
  const auto arena = HostArena::Create({});
  if (!arena.ok()) return state.SkipWithError(arena.status().ToString().c_str());
  const auto bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    const absl::StatusOr<std::shared_ptr<Buffer>> buffer = (*arena)->Allocate(bytes);
    if (!buffer.ok()) return state.SkipWithError("there is no memory");
    benchmark::DoNotOptimize((*buffer)->data());
  }
  state.SetItemsProcessed(state.iterations());
}

// As much from the heap, which no other process can map.
void BM_Arena_Floor(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    void* const memory = std::malloc(bytes);
    benchmark::DoNotOptimize(memory);
    std::free(memory);
  }
  state.SetItemsProcessed(state.iterations());
}

Tensor Floats(size_t bytes) {
  Tensor tensor = *Tensor::Allocate(DataType::kFloat,
                                    *Shape::Create({static_cast<int64_t>(bytes / sizeof(float))}));
  std::memset(tensor.mutable_data(), 1, tensor.bytes());
  return tensor;
}

void BM_TensorProto_ToAndFrom(benchmark::State& state) {
  const Tensor tensor = Floats(static_cast<size_t>(state.range(0)));
  Tensor last;
  for (auto _ : state) {
    const auto proto = TensorToProto(tensor);
    if (!proto.ok()) return state.SkipWithError("it becomes no message");
    absl::StatusOr<Tensor> back = TensorFromProto(*proto);
    if (!back.ok()) return state.SkipWithError("it comes back as none");
    last = *std::move(back);
  }
  if (!IsEqual(last, tensor)) state.SkipWithError("it comes back as another tensor");
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0));
}

// Two copies, into memory that is there.
void BM_TensorProto_Floor(benchmark::State& state) {
  const Tensor tensor = Floats(static_cast<size_t>(state.range(0)));
  std::vector<char> there(tensor.bytes());
  std::vector<char> back(tensor.bytes());
  for (auto _ : state) {
    std::memcpy(there.data(), tensor.data(), tensor.bytes());
    benchmark::ClobberMemory();
    std::memcpy(back.data(), there.data(), tensor.bytes());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0));
}

// Decoding of received tensors: the values of booleans are checked, those of bytes are not.
void BM_TensorProto_From(benchmark::State& state) {
  const bool is_boolean = state.range(0) != 0;
  const int64_t bytes = state.range(1);
  Tensor tensor =
      *Tensor::Allocate(is_boolean ? DataType::kBool : DataType::kUint8, *Shape::Create({bytes}));
  for (int64_t i = 0; i < bytes; ++i) static_cast<uint8_t*>(tensor.mutable_data())[i] = i % 3 == 0;
  const auto proto = TensorToProto(tensor);
  if (!proto.ok()) return state.SkipWithError("it becomes no message");
  Tensor last;
  for (auto _ : state) {
    absl::StatusOr<Tensor> back = TensorFromProto(*proto);
    if (!back.ok()) return state.SkipWithError("it comes back as none");
    last = *std::move(back);
  }
  if (!IsEqual(last, tensor)) state.SkipWithError("it comes back as another tensor");
  state.SetBytesProcessed(state.iterations() * bytes);
}

// The check alone, of memory that is resident.
void BM_CheckValues_Booleans(benchmark::State& state) {
  Tensor tensor = *Tensor::Allocate(DataType::kBool, *Shape::Create({state.range(0)}));
  std::memset(tensor.mutable_data(), 1, tensor.bytes());
  for (auto _ : state) {
    if (!CheckValues(tensor).ok()) return state.SkipWithError("it is none");
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// Returns the given costs.
class SayingTransport final : public Transport {
 public:
  SayingTransport(absl::string_view name, PathCost cost, bool has_control_channel_latency)
      : Transport({.name = name,
                   .summary = "says what it is told to",
                   .capabilities = {.has_fd_channel_latency = has_control_channel_latency,
                                    .has_plain_channel_latency = has_control_channel_latency}}),
        cost_(std::move(cost)) {}
  absl::StatusOr<PathCost> Cost(const PathQuery&) const override { return cost_; }
  std::shared_ptr<TransportSender> CreateSender(const Endpoint&) override { return nullptr; }
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint&, ReleaseCallback) override {
    return nullptr;
  }

 private:
  const PathCost cost_;
};

// Between two processes of a host, after both paths have been seen.
struct Selection {
  Selection() : costs(2) {
    transports.push_back(std::make_unique<SayingTransport>(
        "shm", PathCost{absl::Microseconds(1), kNoCopy}, /*has_control_channel_latency=*/true));
    transports.push_back(std::make_unique<SayingTransport>(
        "tcp", PathCost{absl::Microseconds(8), 8e9}, /*has_control_channel_latency=*/false));
    ends[0].peer = {0, 1};
    ends[1].peer = {1, 2};
    query.source = &ends[0];
    query.destination = &ends[1];
    query.bytes = size_t{1} << 20;
    query.estimates = &costs;
    query.now = absl::UnixEpoch();
    costs.RecordControlLatency(absl::Microseconds(1), query.now);
  }
  TransportList transports;
  PathCostEstimator costs;
  Endpoint ends[2];
  PathQuery query;
};

// in_arena: 1: nothing can be cheaper than a zero-copy transfer; 0: all are queried.
void BM_Selection_Pick(benchmark::State& state) {
  Selection selection;
  selection.query.is_in_arena = state.range(0) == 1;
  for (auto _ : state) {
    const std::optional<size_t> picked =
        SelectPath(selection.transports, selection.query, {}, /*explanation=*/nullptr);
    if (picked != 0) return state.SkipWithError("it is another path");
  }
  state.SetItemsProcessed(state.iterations());
}

// Each transport queried once, and the smaller of two sums.
void BM_Selection_Floor(benchmark::State& state) {
  const Selection selection;
  for (auto _ : state) {
    const absl::StatusOr<PathCost> shm = selection.transports[0]->Cost(selection.query);
    const absl::StatusOr<PathCost> tcp = selection.transports[1]->Cost(selection.query);
    benchmark::DoNotOptimize(shm->Of(selection.query.bytes) < tcp->Of(selection.query.bytes));
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Key_Floor);
BENCHMARK(BM_Key_Parse);
BENCHMARK(BM_Frame_Floor)->ArgName("bytes")->Arg(64)->Arg(4096);
BENCHMARK(BM_Frame_WriteThenRead)->ArgName("bytes")->Arg(64)->Arg(4096);
BENCHMARK(BM_Arena_Floor)->ArgName("bytes")->Arg(4096)->Arg(1 << 20);
BENCHMARK(BM_Arena_AllocateThenRelease)->ArgName("bytes")->Arg(4096)->Arg(1 << 20);
BENCHMARK(BM_TensorProto_Floor)->ArgName("bytes")->Arg(4096)->Arg(1 << 20);
BENCHMARK(BM_TensorProto_ToAndFrom)->ArgName("bytes")->Arg(4096)->Arg(1 << 20);
BENCHMARK(BM_TensorProto_From)
    ->ArgNames({"boolean", "bytes"})
    ->ArgsProduct({{0, 1}, {8, 4096, 1 << 20, 64 << 20}});
BENCHMARK(BM_CheckValues_Booleans)
    ->ArgName("bytes")
    ->Arg(8)
    ->Arg(4096)
    ->Arg(1 << 20)
    ->Arg(64 << 20);
BENCHMARK(BM_Selection_Floor);
BENCHMARK(BM_Selection_Pick)->ArgName("in_arena")->Arg(1)->Arg(0);

}  // namespace
}  // namespace ferry

BENCHMARK_MAIN();
