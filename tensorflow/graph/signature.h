// SPDX-License-Identifier: Apache-2.0
// The attributes of a node, and the types of its inputs and outputs that follow from them.
#ifndef FERRY_TENSORFLOW_GRAPH_SIGNATURE_H_
#define FERRY_TENSORFLOW_GRAPH_SIGNATURE_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "proto/tf_node.pb.h"
#include "tensorflow/graph/op_schema.h"

namespace ferry::graph {

// Types in a row. A value. Kept as runs: a node of a few bytes may say that it has two thousand
// million outputs.
class TypeList {
 public:
  struct Run {
    DataType type = tensorflow::DT_INVALID;
    // The index after its last one.
    int64_t end = 0;
    // Which of the op's arguments they belong to.
    int arg = 0;
  };

  void Add(DataType type, int64_t count, int arg);

  int64_t size() const { return runs_.empty() ? 0 : runs_.back().end; }
  absl::Span<const Run> runs() const { return runs_; }
  // REQUIRES: 0 <= index < size().
  DataType type(int64_t index) const { return RunOf(index).type; }
  int arg(int64_t index) const { return RunOf(index).arg; }

 private:
  const Run& RunOf(int64_t index) const;

  absl::InlinedVector<Run, 1> runs_;
};

struct Signature {
  TypeList inputs;
  TypeList outputs;
};

// Adds the defaults of attributes that `node` does not have.
void FillDefaults(const OpSchema& op, tensorflow::NodeDef& node);

// Whether every attribute that `op` declares is there, of its kind, and allowed. Others are
// nobody's concern: newer clients have more of them.
//   Errors: NOT_FOUND for one that is missing, INVALID_ARGUMENT otherwise.
absl::Status CheckAttrs(const OpSchema& op, const tensorflow::NodeDef& node);

// REQUIRES: CheckAttrs is OK.
//   Errors: INVALID_ARGUMENT for more than 2^31 - 1 inputs or outputs.
absl::StatusOr<Signature> SignatureOf(const OpSchema& op, const tensorflow::NodeDef& node);

// "[T=DT_HALF, N=2]": what an error says of a node's types.
std::string TypeAttrsText(const OpSchema& op, const tensorflow::NodeDef& node);

// The first of the op's kernels for `device_type` that takes the node's types; null if there is
// none. REQUIRES: CheckAttrs is OK.
const KernelSchema* FindKernel(const OpSchema& op, const tensorflow::NodeDef& node,
                               absl::string_view device_type);

// Whether argument `arg_name`, which is of `type`, is in the host's memory there.
bool IsInHostMemory(const KernelSchema& kernel, absl::string_view arg_name, DataType type);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_SIGNATURE_H_
