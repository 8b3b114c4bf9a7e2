// SPDX-License-Identifier: Apache-2.0
// Writes shapes.
#include "worker/kernels/shape_text.h"

#include "absl/strings/str_cat.h"

namespace ferry::worker {

std::string PartialShapeText(const tensorflow::TensorShapeProto& shape) {
  if (shape.unknown_rank()) return "<unknown>";
  std::string text = "[";
  for (int i = 0; i < shape.dim_size(); ++i) {
    if (i > 0) text += ",";
    if (shape.dim(i).size() < 0) {
      text += "?";
    } else {
      absl::StrAppend(&text, shape.dim(i).size());
    }
  }
  return text + "]";
}

}  // namespace ferry::worker
