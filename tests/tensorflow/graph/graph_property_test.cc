// SPDX-License-Identifier: Apache-2.0
// Random graphs: a graph that is cut and joined again computes the same, and pruning removes only
// unneeded nodes. FERRY_GRAPH_SEED replays one.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "tensorflow/graph/names.h"
#include "tensorflow/graph/op_registry.h"
#include "tensorflow/graph/partition.h"
#include "tensorflow/graph/prune.h"
#include "tensorflow/graph/transfer.h"
#include "tests/tensorflow/graph/graph_fixture.h"

namespace ferry::graph {
namespace {

// Values are numbers, and the order of side effects is recorded.
class Evaluator {
 public:
  // Nodes of all partitions together: they find each other through a table of keys, as in a step.
  Evaluator(const std::vector<const GraphDef*>& graphs, std::map<std::string, int64_t> sent)
      : sent_(std::move(sent)) {
    for (const GraphDef* graph : graphs) {
      for (const NodeDef& node : graph->node()) nodes_.push_back(&node);
    }
  }

  // Runs every node once, as soon as its inputs are available; false if some never can run.
  bool Run() {
    bool is_moving = true;
    std::vector<const NodeDef*> waiting = nodes_;
    while (is_moving) {
      is_moving = false;
      std::vector<const NodeDef*> left;
      for (const NodeDef* node : waiting) {
        if (TryRun(*node)) {
          is_moving = true;
        } else {
          left.push_back(node);
        }
      }
      waiting = std::move(left);
    }
    for (const NodeDef* node : waiting) ADD_FAILURE() << "not run: " << node->ShortDebugString();
    return waiting.empty();
  }

  const std::map<std::string, int64_t>& sent() const { return sent_; }
  const std::map<std::string, int64_t>& values() const { return values_; }
  const std::string& OpOf(const std::string& node) const {
    const auto is_it = [&node](const NodeDef* one) { return one->name() == node; };
    return (*std::find_if(nodes_.begin(), nodes_.end(), is_it))->op();
  }
  // When each node ran.
  int TimeOf(const std::string& node) const { return times_.at(node); }

 private:
  bool TryRun(const NodeDef& node) {
    std::vector<int64_t> inputs;
    for (const std::string& input : node.input()) {
      if (absl::StartsWith(input, "^")) {
        if (times_.count(input.substr(1)) == 0) return false;
        continue;
      }
      // Names of nodes that were added begin with _, which clients' names may not.
      const std::string key = absl::StrContains(input, ':') ? input : TensorText(input, 0);
      const auto value = values_.find(key);
      if (value == values_.end()) return false;
      inputs.push_back(value->second);
    }
    if (IsRecvOp(node.op())) {
      const auto found = sent_.find(*KeyOf(node));
      if (found == sent_.end()) return false;
      Set(node, 0, found->second);
    } else if (IsSendOp(node.op())) {
      EXPECT_TRUE(sent_.emplace(*KeyOf(node), inputs.at(0)).second) << "sent twice";
    } else if (node.op() == "Const") {
      const tensorflow::TensorProto& tensor = node.attr().at("value").tensor();
      Set(node, 0, tensor.float_val_size() > 0 ? static_cast<int64_t>(tensor.float_val(0)) : 0);
    } else if (node.op() == "Identity") {
      Set(node, 0, inputs.at(0));
    } else if (node.op() == "Neg") {
      Set(node, 0, -inputs.at(0));
    } else if (node.op() == "AddV2") {
      Set(node, 0, inputs.at(0) + 3 * inputs.at(1));
    } else if (node.op() == "IdentityN") {
      for (size_t i = 0; i < inputs.size(); ++i) {
        Set(node, static_cast<int>(i), inputs[i] + static_cast<int64_t>(i));
      }
    } else {
      EXPECT_EQ(node.op(), "NoOp");
    }
    times_.emplace(node.name(), static_cast<int>(times_.size()));
    return true;
  }

  void Set(const NodeDef& node, int port, int64_t value) {
    values_[TensorText(node.name(), port)] = value % 1000003;
  }

  std::vector<const NodeDef*> nodes_;
  std::map<std::string, int64_t> sent_;
  std::map<std::string, int64_t> values_;
  std::map<std::string, int> times_;
};

class RandomGraph {
 public:
  RandomGraph(uint64_t seed, const DeviceSet& devices) : engine_(seed), devices_(devices) {
    const int count = 1 + Roll(40);
    for (int i = 0; i < count; ++i) AddNode(i);
  }

  int Roll(int sides) { return static_cast<int>(engine_() % static_cast<uint64_t>(sides)); }
  const GraphWriter& writer() const { return writer_; }
  // "n3:1".
  const std::vector<std::string>& outputs() const { return outputs_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::string Input() {
    const std::string& output =
        outputs_[static_cast<size_t>(Roll(static_cast<int>(outputs_.size())))];
    // Both spellings.
    if (absl::EndsWith(output, ":0") && Roll(2) == 0) return output.substr(0, output.size() - 2);
    return output;
  }

  void AddNode(int index) {
    const std::string name = absl::StrCat("n", index, Roll(4) == 0 ? "_S1" : "");
    const std::string device = Roll(4) == 0 ? "" : devices_.device(Roll(devices_.size())).name;
    std::vector<std::string> inputs;
    int outputs = 1;
    const int kind = outputs_.empty() ? 0 : Roll(6);
    if (kind == 1 || kind == 2) inputs = {Input()};
    if (kind == 3) inputs = {Input(), Input()};
    if (kind == 4) {
      outputs = 1 + Roll(3);
      for (int i = 0; i < outputs; ++i) inputs.push_back(Input());
    }
    for (int i = Roll(3); i > 0 && !names_.empty(); --i) {
      inputs.push_back("^" + names_[static_cast<size_t>(Roll(static_cast<int>(names_.size())))]);
    }
    const char* const ops[] = {"Const", "Identity", "Neg", "AddV2", "IdentityN", "NoOp"};
    if (kind == 0) {
      NodeDef& node = writer_.Const(name, device, static_cast<float>(1 + Roll(100)));
      for (const std::string& input : inputs) node.add_input(input);
    } else if (kind == 4) {
      NodeDef& node = writer_.Add(name, ops[kind], inputs, device);
      for (int i = 0; i < outputs; ++i) {
        (*node.mutable_attr())["T"].mutable_list()->add_type(tensorflow::DT_FLOAT);
      }
    } else if (kind == 5) {
      writer_.Add(name, ops[kind], inputs, device);
      outputs = 0;
    } else {
      writer_.AddFloat(name, ops[kind], inputs, device);
    }
    names_.push_back(name);
    for (int i = 0; i < outputs; ++i) outputs_.push_back(TensorText(name, i));
  }

  std::mt19937_64 engine_;
  const DeviceSet& devices_;
  GraphWriter writer_;
  std::vector<std::string> names_;
  std::vector<std::string> outputs_;
};

// Nodes that must run for `request`, found by looking at names alone.
std::set<std::string> Ancestors(const GraphDef& def, const StepRequest& request) {
  std::map<std::string, const NodeDef*> by_name;
  for (const NodeDef& node : def.node()) by_name[node.name()] = &node;
  const std::set<std::string> fed(request.feeds.begin(), request.feeds.end());
  std::set<std::string> found;
  std::vector<std::string> pending = request.targets;
  for (const std::string& fetch : request.fetches) {
    pending.emplace_back(ParseTensorName(fetch).node);
  }
  while (!pending.empty()) {
    const std::string name = pending.back();
    pending.pop_back();
    if (!found.insert(name).second) continue;
    for (const std::string& input : by_name.at(name)->input()) {
      const InputName parsed = *ParseInputName(input);
      if (!parsed.is_control && fed.count(TensorText(parsed.node, parsed.port)) != 0) continue;
      pending.emplace_back(parsed.node);
    }
  }
  return found;
}

class GraphProperty {
 public:
  explicit GraphProperty(uint64_t seed)
      : devices_(Devices(3, seed % 2 == 0 ? 0 : 2)), random_(seed, devices_) {}

  void Check() {
    const Graph graph = *random_.writer().Create();
    const std::vector<int> placement = *Place(graph, devices_, {});
    const StepRequest request = MakeRequest();
    const absl::StatusOr<StepGraph> step = Prune(graph, placement, devices_, request);
    ASSERT_EQ(step.status(), absl::OkStatus());
    CheckPruned(*step, request);
    const absl::StatusOr<Partitioned> cut =
        PartitionByDevice(step->graph, step->placement, devices_);
    ASSERT_EQ(cut.status(), absl::OkStatus());
    CheckCut(*cut, *step);
  }

 private:
  StepRequest MakeRequest() {
    StepRequest request;
    std::set<std::string> fed;
    for (int i = random_.Roll(3); i > 0; --i) fed.insert(AnyOutput());
    request.feeds.assign(fed.begin(), fed.end());
    for (int i = random_.Roll(4); i > 0; --i) {
      const std::string fetch = AnyOutput();
      if (fed.count(fetch) == 0) request.fetches.push_back(fetch);
    }
    for (int i = random_.Roll(3); i > 0; --i) {
      request.targets.push_back(random_.names()[static_cast<size_t>(
          random_.Roll(static_cast<int>(random_.names().size())))]);
    }
    if (request.fetches.empty() && request.targets.empty()) {
      request.targets.push_back(random_.names().back());
    }
    return request;
  }

  std::string AnyOutput() {
    return random_
        .outputs()[static_cast<size_t>(random_.Roll(static_cast<int>(random_.outputs().size())))];
  }

  void CheckPruned(const StepGraph& step, const StepRequest& request) {
    std::set<std::string> kept;
    for (int i = 0; i < step.graph.node_count(); ++i) {
      const std::string& name = step.graph.node(i).name();
      if (name[0] != '_') kept.insert(name);
    }
    EXPECT_EQ(kept, Ancestors(random_.writer().def(), request));
  }

  // The step's graph as one GraphDef, and in partitions.
  void CheckCut(const Partitioned& cut, const StepGraph& step) {
    std::map<std::string, int64_t> feeds;
    for (size_t i = 0; i < step.feeds.size(); ++i) {
      if (step.feeds[i].node >= 0) feeds[step.feeds[i].key] = 1000 + static_cast<int64_t>(i);
    }
    const GraphDef whole = Whole(step.graph);
    Evaluator expected({&whole}, feeds);
    ASSERT_TRUE(expected.Run());
    std::vector<const GraphDef*> parts;
    for (const Partition& partition : cut.partitions) {
      CheckSelfContained(partition);
      parts.push_back(&partition.graph);
    }
    Evaluator actual(parts, feeds);
    ASSERT_TRUE(actual.Run());
    for (const auto& [name, value] : expected.values()) {
      EXPECT_EQ(actual.values().at(name), value) << name;
    }
    for (const StepTensor& fetch : step.fetches) {
      EXPECT_EQ(actual.sent().at(fetch.key), expected.sent().at(fetch.key)) << fetch.name;
    }
    for (int i = 0; i < step.graph.node_count(); ++i) {
      for (const int before : step.graph.control_inputs(i)) {
        EXPECT_LT(actual.TimeOf(step.graph.node(before).name()),
                  actual.TimeOf(step.graph.node(i).name()));
      }
    }
    // Each pair once per tensor and memory, which may be either memory of a device.
    std::set<std::string> keys;
    std::set<std::string> arrivals;
    for (const Crossing& crossing : cut.crossings) {
      EXPECT_TRUE(keys.insert(crossing.key).second) << crossing.key;
      const bool is_on_host = actual.OpOf(crossing.recv_node) == "_HostRecv";
      const std::string arrival = absl::StrCat(crossing.src_node, ":", crossing.src_port, ">",
                                               crossing.dst_device, is_on_host ? "h" : "");
      EXPECT_TRUE(arrivals.insert(arrival).second) << arrival;
    }
  }

  static void CheckSelfContained(const Partition& partition) {
    std::set<std::string> names;
    for (const NodeDef& node : partition.graph.node()) names.insert(node.name());
    for (const NodeDef& node : partition.graph.node()) {
      for (const std::string& input : node.input()) {
        absl::string_view name = absl::StripPrefix(input, "^");
        name = name.substr(0, name.find(':'));
        EXPECT_EQ(names.count(std::string(name)), 1u) << input;
      }
    }
  }

  static GraphDef Whole(const Graph& graph) {
    GraphDef def;
    for (int i = 0; i < graph.node_count(); ++i) {
      NodeDef& node = *def.add_node();
      node = graph.node(i).def;
      node.clear_input();
      for (const Endpoint& input : graph.inputs(i)) {
        node.add_input(TensorText(graph.node(input.node).name(), input.port));
      }
      for (const int input : graph.control_inputs(i)) {
        node.add_input(absl::StrCat("^", graph.node(input).name()));
      }
    }
    return def;
  }

  DeviceSet devices_;
  RandomGraph random_;
};

TEST(GraphProperty, CutGraphComputesTheSame) {
  if (const char* seed = std::getenv("FERRY_GRAPH_SEED"); seed != nullptr) {
    GraphProperty(std::strtoull(seed, nullptr, 10)).Check();
    return;
  }
  for (uint64_t seed = 1; seed <= 2000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("FERRY_GRAPH_SEED=", seed));
    GraphProperty(seed).Check();
  }
}

}  // namespace
}  // namespace ferry::graph
