// SPDX-License-Identifier: Apache-2.0
// Short forms for writing graphs.
#ifndef FERRY_TESTS_TENSORFLOW_GRAPH_GRAPH_FIXTURE_H_
#define FERRY_TESTS_TENSORFLOW_GRAPH_GRAPH_FIXTURE_H_

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/graph/place.h"

namespace ferry::graph {

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using tensorflow::GraphDef;
using tensorflow::NodeDef;

inline constexpr char kTask0[] = "/job:worker/task:0";
inline constexpr char kTask1[] = "/job:worker/task:1";

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// A status with that code and a message that matches.
MATCHER_P2(Fails, code, message, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status;
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

// Adds nodes to a GraphDef; each call returns the node, for more.
class GraphWriter {
 public:
  NodeDef& Add(const std::string& name, const std::string& op,
               const std::vector<std::string>& inputs = {}, const std::string& device = "") {
    NodeDef& node = *def_.add_node();
    node.set_name(name);
    node.set_op(op);
    for (const std::string& input : inputs) node.add_input(input);
    node.set_device(device);
    return node;
  }
  // One of type T, which is float.
  NodeDef& AddFloat(const std::string& name, const std::string& op,
                    const std::vector<std::string>& inputs = {}, const std::string& device = "") {
    NodeDef& node = Add(name, op, inputs, device);
    (*node.mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
    return node;
  }
  NodeDef& Const(const std::string& name, const std::string& device = "", float value = 1,
                 tensorflow::DataType type = tensorflow::DT_FLOAT) {
    NodeDef& node = Add(name, "Const", {}, device);
    (*node.mutable_attr())["dtype"].set_type(type);
    tensorflow::TensorProto& tensor = *(*node.mutable_attr())["value"].mutable_tensor();
    tensor.set_dtype(type);
    tensor.mutable_tensor_shape();
    tensor.add_float_val(value);
    return node;
  }
  NodeDef& Placeholder(const std::string& name, const std::string& device = "") {
    NodeDef& node = Add(name, "Placeholder", {}, device);
    (*node.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
    return node;
  }
  NodeDef& Variable(const std::string& name, const std::string& device = "") {
    NodeDef& node = Add(name, "VarHandleOp", {}, device);
    (*node.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
    (*node.mutable_attr())["shape"].mutable_shape();
    return node;
  }

  const GraphDef& def() const { return def_; }
  GraphDef& def() { return def_; }
  absl::StatusOr<Graph> Create() const { return Graph::Create(def_, "the test"); }

 private:
  GraphDef def_;
};

inline void SetClass(NodeDef& node, const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) {
    (*node.mutable_attr())["_class"].mutable_list()->add_s(entry);
  }
}

// That many tasks of one job, each with a CPU and `gpus` GPUs. Incarnations: 100 * task + index,
// plus 50 for GPUs. The client is at task 0.
inline DeviceSet Devices(int tasks, int gpus = 0) {
  std::vector<std::pair<std::string, uint64_t>> devices;
  for (int task = 0; task < tasks; ++task) {
    const std::string prefix = absl::StrCat("/job:worker/replica:0/task:", task, "/device:");
    const auto number = static_cast<uint64_t>(100 * task);
    devices.emplace_back(absl::StrCat(prefix, "CPU:0"), number);
    for (int gpu = 0; gpu < gpus; ++gpu) {
      devices.emplace_back(absl::StrCat(prefix, "GPU:", gpu),
                           number + 50 + static_cast<uint64_t>(gpu));
    }
  }
  return *DeviceSet::Create(devices, "/job:worker/replica:0/task:0/device:CPU:0");
}

// "task:1/device:CPU:0".
inline std::string ShortName(const DeviceSet& devices, int device) {
  const std::string& name = devices.device(device).name;
  return name.substr(name.find("task:"));
}

// Where `node` is put.
inline std::string PlaceOfNode(const GraphWriter& writer, const DeviceSet& devices,
                               const std::string& node, bool is_soft = false) {
  const absl::StatusOr<Graph> graph = writer.Create();
  if (!graph.ok()) return graph.status().ToString();
  PlaceOptions options;
  options.allow_soft_placement = is_soft;
  const absl::StatusOr<std::vector<int>> placement = Place(*graph, devices, options);
  if (!placement.ok()) return placement.status().ToString();
  return ShortName(devices, (*placement)[static_cast<size_t>(graph->Find(node))]);
}

}  // namespace ferry::graph

#endif  // FERRY_TESTS_TENSORFLOW_GRAPH_GRAPH_FIXTURE_H_
