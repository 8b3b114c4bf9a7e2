// SPDX-License-Identifier: Apache-2.0
// Converts absolute times to TensorFlow's relative ones.
#include "tensorflow/worker/step_stats.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ferry::worker {
namespace {

constexpr int64_t kNanosPerMicro = 1000;

// "8B", "64.0KB", "1.5MB".
std::string SizeText(size_t bytes) {
  constexpr size_t kKilo = 1024;
  if (bytes < kKilo) return absl::StrCat(bytes, "B");
  const double kilobytes = static_cast<double>(bytes) / kKilo;
  if (kilobytes < kKilo) return absl::StrFormat("%.1fKB", kilobytes);
  return absl::StrFormat("%.1fMB", kilobytes / kKilo);
}

std::string TransferLabel(const Plan::Node& node, const NodeTimes& times) {
  const RendezvousKey& key = *node.key;
  return absl::StrCat("[", SizeText(times.bytes), "] ", key.edge(), " from ", key.src_device(),
                      " to ", key.dst_device(), times.path.empty() ? "" : " by ", times.path);
}

std::string CollectiveLabel(const CollectiveNode& node, const NodeTimes& times) {
  const absl::string_view kind = node.kind == CollectiveKind::kReduce   ? "reduce"
                                 : node.kind == CollectiveKind::kGather ? "gather"
                                                                        : "broadcast";
  return absl::StrCat("[", SizeText(times.bytes), "] ", kind, times.path.empty() ? "" : " by ",
                      times.path);
}

// "z = AddV2(x, y)", the format that TensorFlow's timeline parses.
std::string ComputeLabel(const tensorflow::NodeDef& node) {
  constexpr int kMaxInputs = 100;
  std::string text = absl::StrCat(node.name(), " = ", node.op(), "(");
  for (int i = 0; i < node.input_size() && i < kMaxInputs; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", node.input(i));
  }
  return absl::StrCat(text, node.input_size() > kMaxInputs ? ", ..." : "", ")");
}

void Fill(const Plan::Node& node, const tensorflow::NodeDef& def, const NodeTimes& times,
          tensorflow::NodeExecStats& row) {
  row.set_node_name(node.name);
  row.set_all_start_micros(times.start_ns / kNanosPerMicro);
  row.set_all_start_nanos(times.start_ns);
  row.set_scheduled_micros(times.ready_ns / kNanosPerMicro);
  row.set_scheduled_nanos(times.ready_ns);
  const int64_t took = times.end_ns - times.start_ns;
  row.set_op_start_rel_micros(0);
  row.set_op_end_rel_micros(took / kNanosPerMicro);
  row.set_op_end_rel_nanos(took);
  row.set_all_end_rel_micros(took / kNanosPerMicro);
  row.set_all_end_rel_nanos(took);
  if (node.collective != nullptr) {
    row.set_timeline_label(CollectiveLabel(*node.collective, times));
  }
  if (node.kind == PlanNode::Kind::kCompute) {
    row.set_timeline_label(ComputeLabel(def));
    // The timeline draws edges from these; the outputs' sizes are not known.
    for (int i = 0; i < node.output_count; ++i) row.add_output()->set_slot(i);
  }
  if (!node.key.has_value()) return;
  row.set_timeline_label(TransferLabel(node, times));
  // The exact size: the label rounds it.
  row.add_output()
      ->mutable_tensor_description()
      ->mutable_allocation_description()
      ->set_requested_bytes(static_cast<int64_t>(times.bytes));
}

bool CameFromElsewhere(const Plan::Node& node) {
  return node.kind == PlanNode::Kind::kRecv && node.key->src().task != node.key->dst().task;
}

// Adds rows for the nodes that ran and for which `is_wanted` returns true.
template <typename Predicate>
void FillRows(const RegisteredGraph& graph, const std::vector<NodeTimes>& times,
              Predicate is_wanted, tensorflow::StepStats& stats) {
  const Plan& plan = *graph.plan();
  std::vector<tensorflow::DeviceStepStats*> rows(static_cast<size_t>(graph.devices().count()));
  for (int i = 0; i < plan.node_count() && static_cast<size_t>(i) < times.size(); ++i) {
    const NodeTimes& each = times[static_cast<size_t>(i)];
    if (each.end_ns == 0) continue;
    const Plan::Node& node = plan.node(i);
    if (!is_wanted(node)) continue;
    tensorflow::DeviceStepStats*& device = rows[static_cast<size_t>(node.device)];
    if (device == nullptr) {
      device = stats.add_dev_stats();
      device->set_device(graph.devices().name(node.device));
    }
    // Node numbers are the same in the plan and the graph.
    Fill(node, graph.graph().node(i).def, each, *device->add_node_stats());
  }
}

}  // namespace

void FillStepStats(const RegisteredGraph& graph, const std::vector<NodeTimes>& times,
                   tensorflow::StepStats& stats) {
  FillRows(
      graph, times, [](const Plan::Node&) { return true; }, stats);
}

void FillTransfers(const RegisteredGraph& graph, const std::vector<NodeTimes>& times,
                   tensorflow::StepStats& stats) {
  FillRows(graph, times, CameFromElsewhere, stats);
  for (tensorflow::DeviceStepStats& device : *stats.mutable_dev_stats()) {
    for (tensorflow::NodeExecStats& row : *device.mutable_node_stats()) {
      row.set_node_name("RecvTensor");
    }
  }
}

}  // namespace ferry::worker
