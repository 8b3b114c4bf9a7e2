// SPDX-License-Identifier: Apache-2.0
// Kernels of the host next to the limits of the machine: copying the same bytes, or a plain loop.
//
//   build/release/benchmarks/kernel_bench
//
// bytes: of the output. Rates are of all bytes that are read and written. Estimate: elementwise
// arithmetic, sums and moves as fast as memory, from 1 MiB (in the cache) to 64 MiB; half, which
// this machine's baseline instructions cannot convert, a tenth of that.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "tensor/copy.h"
#include "tensor/host_arena.h"
#include "tensorflow/graph/op_registry.h"
#include "tensorflow/graph/signature.h"
#include "tensorflow/worker/kernel.h"

namespace ferry::worker {
namespace {

using tensorflow::NodeDef;

// Warm memory, as a worker has it.
const KernelEnvironment& Environment() {
  static const auto* const kEnvironment = [] {
    auto* environment = new KernelEnvironment;
    HostArenaOptions options;
    environment->allocate = [arena = *HostArena::Create(options)](size_t bytes) {
      return arena->Allocate(bytes);
    };
    return environment;
  }();
  return *kEnvironment;
}

Tensor Filled(DataType dtype, const std::vector<int64_t>& dims) {
  Tensor tensor = *Tensor::Allocate(dtype, *Shape::Create(dims));
  // Numbers of every type, without NaNs.
  std::memset(tensor.mutable_data(), 1, tensor.bytes());
  return tensor;
}

Tensor IntsOf(const std::vector<int32_t>& values) {
  Tensor tensor =
      *Tensor::Allocate(DataType::kInt32, *Shape::Create({static_cast<int64_t>(values.size())}));
  std::memcpy(tensor.mutable_data(), values.data(), tensor.bytes());
  return tensor;
}

NodeDef NodeOf(const std::string& op, DataType dtype, const std::string& type_attr = "T") {
  NodeDef node;
  node.set_name("node");
  node.set_op(op);
  (*node.mutable_attr())[type_attr].set_type(static_cast<tensorflow::DataType>(dtype));
  graph::FillDefaults(*graph::FindOp(op), node);
  return node;
}

// bytes: moved by one run, read and written.
void RunKernel(benchmark::State& state, const NodeDef& node, const std::vector<Tensor>& inputs,
               int64_t bytes) {
  const auto kernel = MakeKernel(node, "CPU");
  if (!kernel.ok()) return state.SkipWithError(std::string(kernel.status().message()).c_str());
  for (auto _ : state) {
    KernelContext context(Environment(), inputs, 1);
    const absl::Status status = (*kernel)->Compute(context);
    if (!status.ok()) return state.SkipWithError(std::string(status.message()).c_str());
    benchmark::DoNotOptimize(context.outputs()[0].data());
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

void BM_Floor_Copy(benchmark::State& state) {
  const Tensor from = Filled(DataType::kInt8, {state.range(0)});
  for (auto _ : state) {
    Tensor to = *Tensor::Create(DataType::kInt8, from.shape(),
                                *Environment().allocate(static_cast<size_t>(state.range(0))));
    CopyBytes(to.mutable_data(), from.data(), to.bytes());
    benchmark::DoNotOptimize(to.data());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 2);
}

void BM_Floor_AddLoop(benchmark::State& state) {
  const Tensor x = Filled(DataType::kFloat, {state.range(0) / 4});
  const Tensor y = Filled(DataType::kFloat, {state.range(0) / 4});
  for (auto _ : state) {
    Tensor to = *Tensor::Create(DataType::kFloat, x.shape(),
                                *Environment().allocate(static_cast<size_t>(state.range(0))));
    float* const out = static_cast<float*>(to.mutable_data());
    const float* const left = x.elements<float>().data();
    const float* const right = y.elements<float>().data();
    for (int64_t i = 0; i < state.range(0) / 4; ++i) out[i] = left[i] + right[i];
    benchmark::DoNotOptimize(out);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 3);
}

void BM_AddV2(benchmark::State& state, DataType dtype) {
  const int64_t count = state.range(0) / static_cast<int64_t>(ElementBytes(dtype));
  RunKernel(state, NodeOf("AddV2", dtype), {Filled(dtype, {count}), Filled(dtype, {count})},
            3 * state.range(0));
}

void BM_AddV2_Row(benchmark::State& state) {
  RunKernel(
      state, NodeOf("AddV2", DataType::kFloat),
      {Filled(DataType::kFloat, {state.range(0) / 4 / 256, 256}), Filled(DataType::kFloat, {256})},
      2 * state.range(0));
}

void BM_AddN(benchmark::State& state) {
  NodeDef node = NodeOf("AddN", DataType::kFloat);
  (*node.mutable_attr())["N"].set_i(4);
  RunKernel(state, node, std::vector<Tensor>(4, Filled(DataType::kFloat, {state.range(0) / 4})),
            5 * state.range(0));
}

void BM_Cast(benchmark::State& state, DataType from, DataType to) {
  const int64_t count = state.range(0) / static_cast<int64_t>(ElementBytes(to));
  NodeDef node = NodeOf("Cast", from, "SrcT");
  (*node.mutable_attr())["DstT"].set_type(static_cast<tensorflow::DataType>(to));
  const Tensor input = Filled(from, {count});
  RunKernel(state, node, {input}, state.range(0) + static_cast<int64_t>(input.bytes()));
}

// axis 0: sums of columns; 1: of rows.
void BM_Sum(benchmark::State& state, int32_t axis) {
  const Tensor input = Filled(DataType::kFloat, {state.range(0) / 4 / 1024, 1024});
  RunKernel(state, NodeOf("Sum", DataType::kFloat), {input, IntsOf({axis})}, state.range(0));
}

void BM_Transpose(benchmark::State& state) {
  const Tensor input = Filled(DataType::kFloat, {state.range(0) / 4 / 1024, 1024});
  RunKernel(state, NodeOf("Transpose", DataType::kFloat), {input, IntsOf({1, 0})},
            2 * state.range(0));
}

void BM_Concat(benchmark::State& state, int32_t axis) {
  const Tensor half = Filled(DataType::kFloat, {state.range(0) / 8 / 1024, 1024});
  NodeDef node = NodeOf("ConcatV2", DataType::kFloat);
  (*node.mutable_attr())["N"].set_i(2);
  RunKernel(state, node, {half, half, *IntsOf({axis}).Reshape(Shape())}, 2 * state.range(0));
}

void BM_MatMul(benchmark::State& state) {
  const int64_t side = state.range(0);
  const Tensor matrix = Filled(DataType::kFloat, {side, side});
  RunKernel(state, NodeOf("MatMul", DataType::kFloat), {matrix, matrix}, 0);
  state.counters["GFLOP/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * side * side * side * 2) / 1e9,
                         benchmark::Counter::kIsRate);
}

void BM_RandomUniform(benchmark::State& state) {
  NodeDef node = NodeOf("RandomUniform", DataType::kFloat, "dtype");
  (*node.mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  RunKernel(state, node, {IntsOf({static_cast<int32_t>(state.range(0) / 4)})}, state.range(0));
}

// The cost of a kernel besides its elements.
void BM_Small(benchmark::State& state, const std::string& op) {
  std::vector<Tensor> inputs = {Filled(DataType::kFloat, {2})};
  if (op == "AddV2") inputs.push_back(inputs[0]);
  RunKernel(state, NodeOf(op, DataType::kFloat), inputs, 0);
}

constexpr int64_t kSmall = 1 << 20;
constexpr int64_t kLarge = 64 << 20;

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("bytes")->Arg(kSmall)->Arg(kLarge);
}

BENCHMARK(BM_Floor_Copy)->Apply(Sizes);
BENCHMARK(BM_Floor_AddLoop)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_AddV2, float, DataType::kFloat)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_AddV2, int32, DataType::kInt32)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_AddV2, half, DataType::kHalf)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_AddV2, bfloat16, DataType::kBfloat16)->Apply(Sizes);
BENCHMARK(BM_AddV2_Row)->Apply(Sizes);
BENCHMARK(BM_AddN)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, float_to_int32, DataType::kFloat, DataType::kInt32)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, float_to_half, DataType::kFloat, DataType::kHalf)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, float_to_bfloat16, DataType::kFloat, DataType::kBfloat16)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Sum, columns, 0)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Sum, rows, 1)->Apply(Sizes);
BENCHMARK(BM_Transpose)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Concat, rows, 0)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Concat, columns, 1)->Apply(Sizes);
BENCHMARK(BM_RandomUniform)->Apply(Sizes);
BENCHMARK(BM_MatMul)->ArgName("side")->Arg(64)->Arg(512);
BENCHMARK_CAPTURE(BM_Small, Identity, std::string("Identity"));
BENCHMARK_CAPTURE(BM_Small, AddV2, std::string("AddV2"));

}  // namespace
}  // namespace ferry::worker

BENCHMARK_MAIN();
