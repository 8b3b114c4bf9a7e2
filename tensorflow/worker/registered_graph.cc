// SPDX-License-Identifier: Apache-2.0
// Resolves devices, kernels and keys once per graph.
#include "tensorflow/worker/registered_graph.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "gpu/gpu_compute.h"
#include "tensorflow/graph/collective.h"
#include "tensorflow/graph/names.h"
#include "tensorflow/graph/op_registry.h"
#include "tensorflow/graph/signature.h"
#include "tensorflow/graph/transfer.h"
#include "tensorflow/worker/collectives/collective_gpu.h"
#include "tensorflow/worker/step_trace.h"

namespace ferry::worker {
namespace {

using Kind = PlanNode::Kind;

// Limit, because every run allocates space for all outputs of a node.
constexpr int64_t kMaxOutputs = int64_t{1} << 20;

// True if that input or output of a node is in host memory.
//   args: the op's arguments that `types` belong to.
bool IsInHostMemory(const graph::Node& node, const graph::TypeList& types,
                    const std::vector<graph::ArgSchema>& args, int64_t index,
                    absl::string_view device_type) {
  const graph::KernelSchema* const kernel = graph::FindKernel(*node.op, node.def, device_type);
  if (kernel == nullptr) return false;
  const graph::ArgSchema& arg = args[static_cast<size_t>(types.arg(index))];
  return graph::IsInHostMemory(*kernel, arg.name, types.type(index));
}

// Converts the nodes of a graph to those of a plan.
class Planner {
 public:
  Planner(const graph::Graph& graph, const TaskName& task, Session& session)
      : graph_(graph), task_(task), session_(session) {}

  absl::StatusOr<std::shared_ptr<const Plan>> Run() {
    std::vector<PlanNode> nodes(static_cast<size_t>(graph_.node_count()));
    for (int i = 0; i < graph_.node_count(); ++i) {
      FERRY_RETURN_IF_ERROR(Fill(graph_.node(i), nodes[static_cast<size_t>(i)]));
      for (const graph::Endpoint& input : graph_.inputs(i)) {
        nodes[static_cast<size_t>(i)].inputs.push_back({input.node, input.port});
      }
      for (const int control : graph_.control_inputs(i)) {
        nodes[static_cast<size_t>(i)].controls.push_back(control);
      }
    }
    for (int i = 0; i < graph_.node_count(); ++i) {
      const PlanNode& node = nodes[static_cast<size_t>(i)];
      for (const PlanNode::Input& input : node.inputs) {
        FERRY_RETURN_IF_ERROR(CheckEdge(nodes[static_cast<size_t>(input.node)], node));
      }
      FERRY_RETURN_IF_ERROR(CheckMemory(i, node.device));
      for (const int control : node.controls) {
        FERRY_RETURN_IF_ERROR(CheckEdge(nodes[static_cast<size_t>(control)], node));
      }
    }
    return Plan::Create(std::move(nodes));
  }

 private:
  absl::Status Fill(const graph::Node& node, PlanNode& planned) {
    planned.name = node.name();
    if (node.signature.outputs.size() > kMaxOutputs) {
      return absl::ResourceExhaustedError(absl::StrCat("a node has ", node.signature.outputs.size(),
                                                       " outputs; the limit is ", kMaxOutputs,
                                                       graph::AboutNode(node.name())));
    }
    planned.output_count = static_cast<int>(node.signature.outputs.size());
    FERRY_ASSIGN_OR_RETURN(planned.device, DeviceOf(node));
    if (graph::IsCollectiveOp(node.op->name)) return FillCollective(node, planned);
    const bool is_send = graph::IsSendOp(node.op->name);
    if (!is_send && !graph::IsRecvOp(node.op->name)) {
      planned.kind = Kind::kCompute;
      FERRY_ASSIGN_OR_RETURN(planned.kernel, session_.KernelFor(node, planned.device));
      planned.environment = &session_.devices()->environment(planned.device);
      return absl::OkStatus();
    }
    planned.kind = is_send ? Kind::kSend : Kind::kRecv;
    FERRY_ASSIGN_OR_RETURN(const std::string text, graph::KeyOf(node.def));
    absl::StatusOr<RendezvousKey> key = RendezvousKey::Parse(text);
    if (!key.ok()) {
      return absl::Status(key.status().code(),
                          absl::StrCat(key.status().message(), graph::AboutNode(node.name())));
    }
    const TaskDevice& own = is_send ? key->src() : key->dst();
    if (!(own.task == task_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Invalid rendezvous key (", is_send ? "src" : "dst", "): ", Quoted(text),
                       " @ ", ToString(task_), graph::AboutNode(node.name())));
    }
    const auto& attrs = node.def.attr();
    const auto is_client = attrs.find("client_terminated");
    const graph::DataType type = attrs.at(is_send ? "T" : "tensor_type").type();
    if (type == tensorflow::DT_RESOURCE && is_client != attrs.end() && is_client->second.b()) {
      return absl::UnimplementedError(absl::StrCat("handles of resources cannot be fed or fetched",
                                                   graph::AboutNode(node.name())));
    }
    planned.key = *std::move(key);
    if (!is_send) {
      // Resource handles are transferred as strings (variables.h).
      const int number = type == tensorflow::DT_RESOURCE ? tensorflow::DT_STRING : type;
      const std::optional<DataType> dtype = DataTypeOfNumber(number);
      if (!dtype.has_value()) {
        return absl::UnimplementedError(absl::StrCat("tensors of type ", graph::TypeName(type),
                                                     " cannot be received",
                                                     graph::AboutNode(node.name())));
      }
      planned.dtype = *dtype;
      planned.is_for_host = node.op->name == "_HostRecv";
    }
    return absl::OkStatus();
  }

  absl::Status FillCollective(const graph::Node& node, PlanNode& planned) {
    absl::StatusOr<CollectiveNode> collective =
        ReadCollective(node.def, session_.devices()->name(planned.device));
    if (!collective.ok()) {
      return absl::Status(collective.status().code(), absl::StrCat(collective.status().message(),
                                                                   graph::AboutNode(node.name())));
    }
    const std::string& type = session_.devices()->type(planned.device);
    if (type != "CPU" && !IsInHostMemory(node, node.signature.outputs, node.op->outputs, 0, type)) {
      const OpenGpu& open_gpu = session_.devices()->open_gpu(planned.device);
      if (!open_gpu) {
        return absl::UnimplementedError(
            absl::StrCat("this worker cannot use ", session_.devices()->name(planned.device),
                         "; place the collective on a CPU", graph::AboutNode(node.name())));
      }
      FERRY_ASSIGN_OR_RETURN(const KernelGpu gpu, open_gpu());
      collective->memory = {MemorySpace::kCuda, gpu.compute->ordinal()};
    }
    if (session_.devices()->collectives() != nullptr) {
      collective->nccl = session_.devices()->collectives()->Offer(*collective);
    }
    planned.kind = Kind::kCollective;
    planned.dtype = collective->dtype;
    planned.environment = &session_.devices()->environment(planned.device);
    planned.collective = std::make_shared<const CollectiveNode>(*std::move(collective));
    return absl::OkStatus();
  }

  absl::StatusOr<int> DeviceOf(const graph::Node& node) {
    const std::string& name = node.def.device();
    if (name.empty()) return 0;
    const auto [known, is_new] = device_of_.emplace(name, -1);
    if (is_new) known->second = session_.devices()->Find(name);
    if (known->second >= 0) return known->second;
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(name), " unknown device; ", ToString(task_), " has ",
                     session_.devices()->name(0), graph::AboutNode(node.name())));
  }

  absl::Status CheckEdge(const PlanNode& src, const PlanNode& dst) const {
    if (src.device == dst.device) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("an edge goes from one device to another, from node '", graph::Shown(src.name),
                     "' to node '", graph::Shown(dst.name), "': the graph has not been cut"));
  }

  // A tensor of a GPU node is in GPU or host memory, and its consumers must expect the same:
  // transfers connect the two.
  absl::Status CheckMemory(int index, int device) const {
    const std::string& type = session_.devices()->type(device);
    if (type == "CPU") return absl::OkStatus();
    const absl::Span<const graph::Endpoint> inputs = graph_.inputs(index);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const graph::Node& src = graph_.node(inputs[i].node);
      const graph::Node& dst = graph_.node(index);
      if (IsInHostMemory(src, src.signature.outputs, src.op->outputs, inputs[i].port, type) ==
          IsInHostMemory(dst, dst.signature.inputs, dst.op->inputs, static_cast<int64_t>(i),
                         type)) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "an edge goes from one memory to another, from node '", graph::Shown(src.name()),
          "' to node '", graph::Shown(dst.name()), "': the graph has not been cut"));
    }
    return absl::OkStatus();
  }

  const graph::Graph& graph_;
  const TaskName& task_;
  Session& session_;
  absl::flat_hash_map<std::string, int> device_of_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const RegisteredGraph>> RegisteredGraph::Create(
    std::string handle, graph::Graph graph, const TaskName& task, Session& session,
    Budget::Share constants) {
  auto registered = std::shared_ptr<RegisteredGraph>(new RegisteredGraph());
  registered->constants_ = std::move(constants);
  FERRY_ASSIGN_OR_RETURN(registered->plan_, Planner(graph, task, session).Run());
  registered->handle_ = std::move(handle);
  registered->graph_ = std::move(graph);
  registered->devices_ = session.devices();
  for (int i = 0; i < registered->plan_->node_count(); ++i) {
    const Plan::Node& node = registered->plan_->node(i);
    if (node.collective != nullptr) {
      registered->AddCollective(*node.collective, task);
      continue;
    }
    if (!node.key.has_value()) continue;
    Keys& keys = node.kind == Kind::kSend ? registered->sends_ : registered->recvs_;
    keys.emplace(node.key->text(), &*node.key);
    if (!(node.key->src().task == task)) registered->sources_.insert(node.key->src().task);
  }
  return registered;
}

const std::shared_ptr<const NodeLabels>& RegisteredGraph::labels() const {
  absl::call_once(labels_once_,
                  [this] { labels_ = std::make_shared<const NodeLabels>(LabelsOf(*this)); });
  return labels_;
}

void RegisteredGraph::AddCollective(const CollectiveNode& node, const TaskName& task) {
  has_collectives_ = true;
  if (node.self == 0) led_devices_ = node.devices;
  for (const CollectiveDevice& device : *node.devices) {
    if (!(device.device.task == task)) sources_.insert(device.device.task);
  }
}

tensorflow::GraphDef RegisteredGraph::Def() const {
  tensorflow::GraphDef def;
  for (int i = 0; i < graph_.node_count(); ++i) *def.add_node() = graph_.node(i).def;
  *def.mutable_versions() = graph_.versions();
  return def;
}

}  // namespace ferry::worker
