// SPDX-License-Identifier: Apache-2.0
// Graphs as clients send them, within limits.
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "graph/names.h"
#include "master/session.h"

namespace ferry::master {
namespace {

// At least: of what a shape says, not of what is there. Strings count their pointers.
size_t ElementBytes(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_BOOL:
    case tensorflow::DT_INT8:
    case tensorflow::DT_UINT8:
    case tensorflow::DT_QINT8:
    case tensorflow::DT_QUINT8:
      return 1;
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
    case tensorflow::DT_INT16:
    case tensorflow::DT_UINT16:
      return 2;
    case tensorflow::DT_DOUBLE:
    case tensorflow::DT_INT64:
    case tensorflow::DT_UINT64:
    case tensorflow::DT_COMPLEX64:
    case tensorflow::DT_STRING:
      return 8;
    case tensorflow::DT_COMPLEX128:
      return 16;
    default:
      return 4;
  }
}

// A few bytes can say that they are a thousand million elements.
absl::Status CheckConstant(const tensorflow::NodeDef& node, size_t max_bytes) {
  const auto found = node.attr().find("value");
  if (node.op() != "Const" || found == node.attr().end()) return absl::OkStatus();
  const tensorflow::TensorProto& value = found->second.tensor();
  size_t bytes = ElementBytes(value.dtype());
  bool is_empty = false;
  bool is_too_large = false;
  for (const auto& dim : value.tensor_shape().dim()) {
    // Negative sizes are refused where shapes are read.
    if (dim.size() <= 0) is_empty = true;
    const auto size = static_cast<size_t>(dim.size());
    if (dim.size() > 0 && !is_too_large) {
      is_too_large = bytes > max_bytes / size;
      bytes *= is_too_large ? 1 : size;
    }
  }
  if (is_empty || !is_too_large) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("The constant ", graph::Shown(node.name()),
                                                   " would take more than max_constant_bytes (",
                                                   max_bytes, ")", graph::AboutNode(node.name())));
}

}  // namespace

absl::StatusOr<graph::Graph> ReadGraph(tensorflow::GraphDef def, const graph::Graph* before,
                                       const MasterOptions& options) {
  if (def.ByteSizeLong() > options.max_graph_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("The graph is larger than max_graph_bytes (", options.max_graph_bytes, ")"));
  }
  for (const tensorflow::NodeDef& node : def.node()) {
    FERRY_RETURN_IF_ERROR(CheckConstant(node, options.max_constant_bytes));
  }
  if (before != nullptr) return before->Extended(std::move(def), options.host, options.graph);
  return graph::Graph::Create(std::move(def), options.host, options.graph);
}

}  // namespace ferry::master
