// SPDX-License-Identifier: Apache-2.0
// Copies nodes to their partitions and inserts transfers between them.
#include "tensorflow/graph/partition.h"

#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/collective.h"
#include "tensorflow/graph/names.h"
#include "tensorflow/graph/transfer.h"

namespace ferry::graph {
namespace {

using tensorflow::NodeDef;

constexpr int kControl = -1;

// Copies everything except name, op, inputs, device and attributes, including fields of later
// releases.
void CopyRest(const NodeDef& from, NodeDef& to) {
  if (from.has_experimental_debug_info()) {
    *to.mutable_experimental_debug_info() = from.experimental_debug_info();
  }
  if (from.has_experimental_type()) *to.mutable_experimental_type() = from.experimental_type();
  const auto& unknown = from.GetReflection()->GetUnknownFields(from);
  if (!unknown.empty()) to.GetReflection()->MutableUnknownFields(&to)->MergeFrom(unknown);
}

class Partitioner {
 public:
  Partitioner(const Graph& graph, absl::Span<const int> placement, const DeviceSet& devices)
      : graph_(graph),
        placement_(placement),
        devices_(devices),
        graphs_(static_cast<size_t>(devices.size())) {}

  absl::StatusOr<Partitioned> Run() {
    FERRY_RETURN_IF_ERROR(FindKernels());
    FindCollectives();
    for (int i = 0; i < graph_.node_count(); ++i) AddNode(i);
    for (size_t i = 0; i < graphs_.size(); ++i) {
      if (graphs_[i].node_size() == 0) continue;
      *graphs_[i].mutable_versions() = graph_.versions();
      result_.partitions.push_back({static_cast<int>(i), std::move(graphs_[i])});
    }
    return std::move(result_);
  }

 private:
  // A tensor at one consuming device and memory.
  using Arrival = std::tuple<int, int, int, bool>;

  absl::Status FindKernels() {
    for (int i = 0; i < graph_.node_count(); ++i) {
      const Node& node = graph_.node(i);
      const std::string& type = devices_.device(DeviceOf(i)).device.type;
      kernels_.push_back(FindKernel(*node.op, node.def, type));
      if (kernels_.back() == nullptr) {
        return absl::InternalError(absl::StrCat("node '", Shown(node.name()), "' was placed on ",
                                                devices_.device(DeviceOf(i)).name,
                                                ", which has no kernel for ", node.op->name));
      }
    }
    return absl::OkStatus();
  }

  void FindCollectives() {
    std::vector<int> used;
    for (int i = 0; i < graph_.node_count(); ++i) {
      if (IsCollectiveOp(graph_.node(i).op->name)) used.push_back(DeviceOf(i));
    }
    if (!used.empty()) collective_devices_ = CollectiveDevicesAttr(devices_, used);
  }

  void AddNode(int index) {
    const Node& node = graph_.node(index);
    NodeDef& def = *graphs_[static_cast<size_t>(DeviceOf(index))].add_node();
    // Inputs are not copied: they may be many, and they change.
    def.set_name(node.name());
    def.set_op(node.def.op());
    *def.mutable_attr() = node.def.attr();
    CopyRest(node.def, def);
    def.set_device(devices_.device(DeviceOf(index)).name);
    if (IsCollectiveOp(node.op->name)) {
      (*def.mutable_attr())[std::string(kCollectiveDevices)] = collective_devices_;
    }
    const absl::Span<const Endpoint> inputs = graph_.inputs(index);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool is_on_host = IsInputOnHost(index, static_cast<int64_t>(i));
      // Adding transfers grows the repeated field, but `def` itself does not move.
      def.add_input(InputText(inputs[i], DeviceOf(index), is_on_host));
    }
    for (const int input : graph_.control_inputs(index)) {
      def.add_input(absl::StrCat("^", ControlText(input, DeviceOf(index))));
    }
  }

  int DeviceOf(int node) const { return placement_[static_cast<size_t>(node)]; }

  bool IsInputOnHost(int node, int64_t input) const {
    const TypeList& types = graph_.node(node).signature.inputs;
    const ArgSchema& arg = graph_.node(node).op->inputs[static_cast<size_t>(types.arg(input))];
    return IsInHostMemory(*kernels_[static_cast<size_t>(node)], arg.name, types.type(input));
  }
  bool IsOutputOnHost(const Endpoint& output) const {
    const TypeList& types = graph_.node(output.node).signature.outputs;
    const ArgSchema& arg =
        graph_.node(output.node).op->outputs[static_cast<size_t>(types.arg(output.port))];
    return IsInHostMemory(*kernels_[static_cast<size_t>(output.node)], arg.name,
                          types.type(output.port));
  }

  // Returns the input string by which a node on `device` refers to `src`.
  std::string InputText(const Endpoint& src, int device, bool is_on_host) {
    const bool is_src_on_host = IsOutputOnHost(src);
    const std::string& name = graph_.node(src.node).name();
    std::string output = src.port == 0 ? name : TensorText(name, src.port);
    if (DeviceOf(src.node) == device && is_src_on_host == is_on_host) return output;
    std::string& arrival = arrivals_[Arrival{src.node, src.port, device, is_on_host}];
    if (arrival.empty()) {
      const DataType type = graph_.node(src.node).signature.outputs.type(src.port);
      arrival = Cross({name, src.port, DeviceOf(src.node), device, {}, {}, {}}, type, output,
                      is_src_on_host, is_on_host);
    }
    return arrival;
  }

  // Returns the node on `device` to wait for instead of `src`.
  std::string ControlText(int src, int device) {
    const std::string& name = graph_.node(src).name();
    const int src_device = DeviceOf(src);
    if (src_device == device) return name;
    std::string& arrival = arrivals_[Arrival{src, kControl, device, false}];
    if (arrival.empty()) arrival = CrossControl(name, src_device, device);
    return arrival;
  }

  // Adds a control transfer; returns the node on `device` that runs after `name`.
  std::string CrossControl(const std::string& name, int src_device, int device) {
    NodeDef& empty = *graphs_[static_cast<size_t>(src_device)].add_node();
    empty.set_name(NewName(absl::StrCat(name, "/ctrl")));
    empty.set_op("Const");
    empty.set_device(devices_.device(src_device).name);
    empty.add_input(absl::StrCat("^", name));
    (*empty.mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
    tensorflow::TensorProto& value = *(*empty.mutable_attr())["value"].mutable_tensor();
    value.set_dtype(tensorflow::DT_FLOAT);
    value.mutable_tensor_shape()->add_dim()->set_size(0);
    const std::string output = empty.name();
    const std::string received = Cross({name, kControl, src_device, device, {}, {}, {}},
                                       tensorflow::DT_FLOAT, output, false, false);
    // One node that consumes the received tensor, so that the actual waiters need not.
    NodeDef& identity = *graphs_[static_cast<size_t>(device)].add_node();
    identity.set_name(NewName(name));
    identity.set_op("Identity");
    identity.set_device(devices_.device(device).name);
    identity.add_input(received);
    (*identity.mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
    return identity.name();
  }

  // Adds _Send and _Recv for `crossing`; returns the name of the _Recv.
  std::string Cross(Crossing crossing, DataType type, const std::string& output,
                    bool is_src_on_host, bool is_dst_on_host) {
    const Transfer transfer{absl::StrCat("edge_", result_.crossings.size(), "_", crossing.src_node),
                            type, crossing.src_device, crossing.dst_device, false};
    NodeDef& send = *graphs_[static_cast<size_t>(crossing.src_device)].add_node();
    send.set_name(NewName(crossing.src_node));
    send.add_input(output);
    FillSend(transfer, devices_, is_src_on_host, send);
    crossing.send_node = send.name();
    NodeDef& recv = *graphs_[static_cast<size_t>(crossing.dst_device)].add_node();
    recv.set_name(NewName(crossing.src_node));
    FillRecv(transfer, devices_, is_dst_on_host, recv);
    crossing.recv_node = recv.name();
    crossing.key = KeyOf(transfer, devices_);
    result_.crossings.push_back(std::move(crossing));
    return result_.crossings.back().recv_node;
  }

  std::string NewName(absl::string_view prefix) {
    for (;;) {
      std::string name = absl::StrCat(prefix, "_S", next_name_++);
      // The client may have used this name.
      if (graph_.Find(name) < 0) return name;
    }
  }

  const Graph& graph_;
  const absl::Span<const int> placement_;
  const DeviceSet& devices_;
  // Per node.
  std::vector<const KernelSchema*> kernels_;
  // Shared by all collective nodes.
  tensorflow::AttrValue collective_devices_;
  // Per device.
  std::vector<tensorflow::GraphDef> graphs_;
  // The _Recv nodes that exist so far.
  absl::flat_hash_map<Arrival, std::string> arrivals_;
  int64_t next_name_ = 0;
  Partitioned result_;
};

}  // namespace

absl::StatusOr<Partitioned> PartitionByDevice(const Graph& graph, absl::Span<const int> placement,
                                              const DeviceSet& devices) {
  FERRY_CHECK(placement.size() == static_cast<size_t>(graph.node_count()));
  return Partitioner(graph, placement, devices).Run();
}

}  // namespace ferry::graph
