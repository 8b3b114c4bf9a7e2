// SPDX-License-Identifier: Apache-2.0
// PackedTree: many small arrays, and what describes their tree, as one tensor.
#ifndef FERRY_PYTHON_SRC_PACKED_TREE_H_
#define FERRY_PYTHON_SRC_PACKED_TREE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ferry/tensor.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry::python {

// Thousands of tensors of a few KiB cost more as messages than as bytes. One message holds them:
// a header, a record for each leaf, the description, and the packed leaves' elements, each aligned
// to 64 bytes. Leaves that are not packed are sent beside it.
//
// All numbers are little-endian. The header: "ferrytr1"; the number of leaves; the offsets of the
// records and of the description from the beginning, and the latter's size; 8 bytes each. A record:
// the element type (1 byte, a ferry::DataType), whether it is packed (1), the number of dimensions
// (2), zero (4); the offset of its elements (8); the extents (8 each).
struct PackedTree {
  std::string description;
  // Invalid tensors in the place of leaves that are not packed. Views of the message.
  std::vector<Tensor> leaves;
};

struct TreeLeaf {
  Tensor tensor;
  // In host memory, and so small that it is packed.
  bool is_packed = false;
};

// The message's bytes; its elements are written by WritePacked.
size_t PackedBytes(absl::string_view description, absl::Span<const TreeLeaf> leaves);
// REQUIRES: `message` has PackedBytes.
void WritePacked(absl::string_view description, absl::Span<const TreeLeaf> leaves, char* message);

// Reads a message. Its leaves share its memory.
//   Errors: INVALID_ARGUMENT saying what is malformed.
absl::StatusOr<PackedTree> ReadPacked(const Tensor& message);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_PACKED_TREE_H_
