// SPDX-License-Identifier: Apache-2.0
// Converts run records to messages.
#include "tensorflow/worker/step_trace.h"

#include <fstream>
#include <set>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/boot_id.h"

namespace ferry::worker {
namespace {

using ferry::v1::TraceLabel;

TraceLabel::Kind KindOf(PlanNode::Kind kind) {
  switch (kind) {
    case PlanNode::Kind::kSend:
      return TraceLabel::SEND;
    case PlanNode::Kind::kRecv:
      return TraceLabel::RECV;
    case PlanNode::Kind::kCompute:
    // Named by its op.
    case PlanNode::Kind::kCollective:
      break;
  }
  return TraceLabel::COMPUTE;
}

void Fill(const NodeLabel& label, TraceLabel& message) {
  message.set_kind(KindOf(label.kind));
  message.set_name(label.name);
  message.set_op(label.op);
  message.set_device(label.device);
  message.set_key(label.key);
  message.set_edge(label.edge);
  message.set_from(label.src_device);
  message.set_to(label.dst_device);
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

NodeLabels LabelsOf(const RegisteredGraph& graph) {
  const Plan& plan = *graph.plan();
  NodeLabels labels;
  labels.reserve(static_cast<size_t>(plan.node_count()));
  for (int i = 0; i < plan.node_count(); ++i) {
    const Plan::Node& node = plan.node(i);
    NodeLabel& label = labels.emplace_back();
    label.kind = node.kind;
    label.name = node.name;
    // Node numbers are the same in the plan and the graph.
    label.op = graph.graph().node(i).def.op();
    label.device = graph.devices().name(node.device);
    if (!node.key.has_value()) continue;
    label.key = node.key->text();
    label.edge = std::string(node.key->edge());
    label.src_device = std::string(node.key->src_device());
    label.dst_device = std::string(node.key->dst_device());
  }
  return labels;
}

void FillTrace(absl::Span<const StepRing::Record> records, ferry::v1::TraceProcess& process) {
  // Offset of each graph's labels among all labels.
  absl::flat_hash_map<const NodeLabels*, int> first_label;
  std::set<int> threads;
  for (const StepRing::Record& record : records) {
    const auto [first, is_new] =
        first_label.try_emplace(record->labels.get(), process.labels_size());
    if (is_new) {
      for (const NodeLabel& label : *record->labels) Fill(label, *process.add_labels());
    }
    ferry::v1::TraceStep& step = *process.add_steps();
    step.set_step_id(static_cast<uint64_t>(record->step_id));
    step.set_start_ns(record->start_ns);
    step.set_end_ns(record->end_ns);
    step.set_code(static_cast<int>(record->code));
    for (size_t i = 0; i < record->times.size(); ++i) {
      const NodeTimes& times = record->times[i];
      if (times.end_ns == 0) continue;
      ferry::v1::TraceEvent& event = *step.add_events();
      event.set_label(static_cast<uint32_t>(first->second + static_cast<int>(i)));
      event.set_ready_ns(times.ready_ns);
      event.set_start_ns(times.start_ns);
      event.set_end_ns(times.end_ns);
      event.set_thread(times.thread);
      event.set_bytes(times.bytes);
      event.set_transport(std::string(times.path));
      threads.insert(times.thread);
    }
  }
  for (const int id : threads) {
    ferry::v1::TraceThread& thread = *process.add_threads();
    thread.set_id(id);
    // The thread may have ended, or have no name of its own.
    const std::string name = FirstLine(absl::StrCat("/proc/self/task/", id, "/comm"));
    thread.set_name(name.empty() ? absl::StrCat("thread ", id) : name);
  }
  process.set_boot_id(BootId());
  process.set_now_ns(absl::GetCurrentTimeNanos());
}

}  // namespace ferry::worker
