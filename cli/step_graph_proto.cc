// SPDX-License-Identifier: Apache-2.0
// Parses a GraphDef as text or binary, with precise errors.
#include "cli/step_graph_proto.h"

#include <algorithm>
#include <optional>

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/bounded_text.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tensorflow/graph/names.h"

namespace ferry::cli {
namespace {

constexpr int kShownNodes = 12;

class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat("line ", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

bool IsText(absl::string_view content) {
  const absl::string_view first = content.substr(0, 4096);
  return std::all_of(first.begin(), first.end(), [](char c) {
    return absl::ascii_isprint(c) || absl::ascii_isspace(c) || (c & 0x80) != 0;
  });
}

absl::StatusOr<tensorflow::GraphDef> ParseGraph(const std::string& path) {
  FERRY_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(path));
  tensorflow::GraphDef def;
  // Text cannot also be a binary graph: its first letter would be the tag of an unknown field.
  if (!IsText(content)) {
    if (def.ParseFromString(content)) return def;
    return absl::FailedPreconditionError(
        absl::StrCat(Quoted(path), " holds neither the text nor the bytes of a GraphDef"));
  }
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (parser.ParseFromString(content, &def)) return def;
  // A small binary message may consist of printable bytes.
  if (tensorflow::GraphDef binary; binary.ParseFromString(content) && binary.node_size() > 0) {
    return binary;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(Quoted(path), " is no GraphDef: ", error.text()));
}

}  // namespace

absl::StatusOr<StepGraph> StepGraph::Read(const std::string& path) {
  StepGraph graph;
  FERRY_ASSIGN_OR_RETURN(graph.def_, ParseGraph(path));
  if (graph.def_.node_size() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(Quoted(path), " is a graph without nodes"));
  }
  FERRY_ASSIGN_OR_RETURN(graph.graph_, graph::Graph::Create(graph.def_));
  return graph;
}

std::string StepGraph::SomeNodes() const {
  std::vector<std::string> names;
  for (int i = 0; i < std::min(graph_.node_count(), kShownNodes); ++i) {
    names.push_back(graph::Shown(graph_.node(i).name()));
  }
  return BoundedList(names, kShownNodes, static_cast<size_t>(graph_.node_count()));
}

absl::Status StepGraph::CheckNode(absl::string_view name) const {
  if (graph_.Find(graph::ParseTensorName(name).node) >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the graph has no node ",
                                                 Quoted(graph::ParseTensorName(name).node),
                                                 "; it has ", SomeNodes()));
}

absl::StatusOr<WantedTensor> StepGraph::Output(absl::string_view name) const {
  FERRY_RETURN_IF_ERROR(CheckNode(name));
  const graph::InputName parsed = graph::ParseTensorName(name);
  const graph::Node& node = graph_.node(graph_.Find(parsed.node));
  const graph::TypeList& outputs = node.signature.outputs;
  if (parsed.is_control || parsed.port >= outputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", graph::Shown(parsed.node), " (", graph::Shown(node.def.op()),
                     ") has ", outputs.size(), " outputs, and no ", Quoted(name)));
  }
  WantedTensor wanted;
  const std::optional<DataType> dtype =
      DataTypeOfNumber(static_cast<int>(outputs.type(parsed.port)));
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(name), " is a handle, which exists at the worker only"));
  }
  wanted.dtype = *dtype;
  // Only placeholders declare their output shape.
  const auto shape = node.def.attr().find("shape");
  const bool has_shape =
      node.def.op() == "Placeholder" || node.def.op() == "PlaceholderWithDefault";
  if (!has_shape || shape == node.def.attr().end() || shape->second.shape().unknown_rank()) {
    return wanted;
  }
  wanted.dims.emplace();
  for (const auto& dim : shape->second.shape().dim()) wanted.dims->push_back(dim.size());
  return wanted;
}

}  // namespace ferry::cli
