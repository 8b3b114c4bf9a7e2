// SPDX-License-Identifier: Apache-2.0
// Graphs of many nodes: parsing, placing, pruning, cutting.
//
//   build/release/benchmarks/graph_bench
//
// The graph has layers of 100 nodes; each has two inputs from the previous layer and a control
// dependency on a third. A quarter of the nodes is on another device than their inputs. Time per
// node must not depend on their number. Estimate: 2 us to parse a node, which is copying its
// attributes; as much to copy it to its partition.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"

#include "tensorflow/graph/graph.h"
#include "tensorflow/graph/partition.h"
#include "tensorflow/graph/place.h"
#include "tensorflow/graph/prune.h"

namespace ferry::graph {
namespace {

constexpr int kLayer = 100;
constexpr int kTasks = 4;

std::string DeviceOfTask(int task) {
  return absl::StrCat("/job:worker/replica:0/task:", task, "/device:CPU:0");
}

DeviceSet Devices() {
  std::vector<std::pair<std::string, uint64_t>> devices;
  for (int task = 0; task < kTasks; ++task) devices.emplace_back(DeviceOfTask(task), 1);
  return *DeviceSet::Create(devices, DeviceOfTask(0));
}

tensorflow::GraphDef Layers(int nodes) {
  tensorflow::GraphDef def;
  for (int i = 0; i < nodes; ++i) {
    tensorflow::NodeDef& node = *def.add_node();
    node.set_name(absl::StrCat("scope/node_", i));
    // Each column stays at its task, but every fourth layer.
    node.set_device(DeviceOfTask((i % kLayer + i / kLayer / 4) % kTasks));
    if (i < kLayer) {
      node.set_op("Placeholder");
      (*node.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
      continue;
    }
    node.set_op("AddV2");
    const int before = i - i % kLayer - kLayer;
    node.add_input(absl::StrCat("scope/node_", before + i % kLayer));
    node.add_input(absl::StrCat("scope/node_", before + (i % kLayer + 4) % kLayer));
    node.add_input(absl::StrCat("^scope/node_", before + (i % kLayer + 8) % kLayer));
    (*node.mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
  }
  return def;
}

// The client's step: fetches all of the last layer, and feeds all of the first.
StepRequest WholeStep(int nodes) {
  StepRequest request;
  for (int i = 0; i < kLayer; ++i) {
    request.feeds.push_back(absl::StrCat("scope/node_", i, ":0"));
    request.fetches.push_back(absl::StrCat("scope/node_", nodes - kLayer + i, ":0"));
  }
  return request;
}

void CountNodes(benchmark::State& state) {
  state.counters["per_node"] = benchmark::Counter(
      static_cast<double>(state.range(0)),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Baseline of a transformation of graphs: each node copied once, by the library of its messages.
void BM_Graph_CopyFloor(benchmark::State& state) {
  const tensorflow::GraphDef def = Layers(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    auto copy = std::make_unique<tensorflow::GraphDef>(def);
    benchmark::DoNotOptimize(copy->node_size());
    state.PauseTiming();
    copy = nullptr;
    state.ResumeTiming();
  }
  CountNodes(state);
}

void BM_Graph_Create(benchmark::State& state) {
  const tensorflow::GraphDef def = Layers(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    state.PauseTiming();
    tensorflow::GraphDef copy = def;
    state.ResumeTiming();
    absl::StatusOr<Graph> graph = Graph::Create(std::move(copy));
    if (!graph.ok()) state.SkipWithError("not created");
    state.PauseTiming();
    graph = absl::UnknownError("gone");
    state.ResumeTiming();
  }
  CountNodes(state);
}

// One more node, as a client's loop sends.
void BM_Graph_ExtendByOne(benchmark::State& state) {
  const Graph graph = *Graph::Create(Layers(static_cast<int>(state.range(0))));
  tensorflow::GraphDef more;
  more.add_node()->set_name("one_more");
  more.mutable_node(0)->set_op("NoOp");
  more.mutable_node(0)->add_input("^scope/node_7");
  for (auto _ : state) {
    const absl::StatusOr<Graph> extended = graph.Extended(more);
    if (!extended.ok()) state.SkipWithError("not extended");
  }
  CountNodes(state);
}

void BM_Graph_Place(benchmark::State& state) {
  const Graph graph = *Graph::Create(Layers(static_cast<int>(state.range(0))));
  const DeviceSet devices = Devices();
  for (auto _ : state) {
    if (!Place(graph, devices, {}).ok()) state.SkipWithError("not placed");
  }
  CountNodes(state);
}

void BM_Graph_Prune(benchmark::State& state) {
  const int nodes = static_cast<int>(state.range(0));
  const Graph graph = *Graph::Create(Layers(nodes));
  const DeviceSet devices = Devices();
  const std::vector<int> placement = *Place(graph, devices, {});
  const StepRequest request = WholeStep(nodes);
  for (auto _ : state) {
    const absl::StatusOr<StepGraph> step = Prune(graph, placement, devices, request);
    // Placeholders are replaced, fetches are added.
    if (!step.ok() || step->graph.node_count() != nodes + kLayer) state.SkipWithError("not pruned");
  }
  CountNodes(state);
}

void BM_Graph_Partition(benchmark::State& state) {
  const int nodes = static_cast<int>(state.range(0));
  const Graph graph = *Graph::Create(Layers(nodes));
  const DeviceSet devices = Devices();
  const StepGraph step = *Prune(graph, *Place(graph, devices, {}), devices, WholeStep(nodes));
  size_t crossings = 0;
  for (auto _ : state) {
    absl::StatusOr<Partitioned> cut = PartitionByDevice(step.graph, step.placement, devices);
    if (!cut.ok() || cut->partitions.size() != kTasks) state.SkipWithError("not cut");
    state.PauseTiming();
    crossings = cut->crossings.size();
    cut = absl::UnknownError("gone");
    state.ResumeTiming();
  }
  state.counters["crossings"] = static_cast<double>(crossings);
  CountNodes(state);
}

#define FERRY_SIZES Unit(benchmark::kMillisecond)->Arg(1000)->Arg(10000)->Arg(100000)
BENCHMARK(BM_Graph_CopyFloor)->FERRY_SIZES;
BENCHMARK(BM_Graph_Create)->FERRY_SIZES;
BENCHMARK(BM_Graph_ExtendByOne)->FERRY_SIZES;
BENCHMARK(BM_Graph_Place)->FERRY_SIZES;
BENCHMARK(BM_Graph_Prune)->FERRY_SIZES;
BENCHMARK(BM_Graph_Partition)->FERRY_SIZES;

}  // namespace
}  // namespace ferry::graph

BENCHMARK_MAIN();
