// SPDX-License-Identifier: Apache-2.0
// A node's attributes, and the input and output types they determine.
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

// A sequence of types. A value. Run-length encoded: a node of a few bytes may declare two billion
// outputs.
class TypeList {
 public:
  struct Run {
    DataType type = tensorflow::DT_INVALID;
    // One past the last index.
    int64_t end = 0;
    // The op argument these types belong to.
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

// Adds default values for attributes that `node` lacks.
void FillDefaults(const OpSchema& op, tensorflow::NodeDef& node);

// Checks that every attribute `op` declares is present, of its kind, and allowed. Others are
// ignored: newer clients send more.
//   Errors: NOT_FOUND for a missing one, INVALID_ARGUMENT otherwise.
absl::Status CheckAttrs(const OpSchema& op, const tensorflow::NodeDef& node);

// REQUIRES: CheckAttrs is OK.
//   Errors: INVALID_ARGUMENT for more than 2^31 - 1 inputs or outputs.
absl::StatusOr<Signature> SignatureOf(const OpSchema& op, const tensorflow::NodeDef& node);

// "[T=DT_HALF, N=2]": a node's types, for error messages.
std::string TypeAttrsText(const OpSchema& op, const tensorflow::NodeDef& node);

// Returns the op's first kernel for `device_type` that supports the node's types; null if there is
// none. REQUIRES: CheckAttrs is OK.
const KernelSchema* FindKernel(const OpSchema& op, const tensorflow::NodeDef& node,
                               absl::string_view device_type);

// True if argument `arg_name`, of type `type`, is in host memory for this kernel.
bool IsInHostMemory(const KernelSchema& kernel, absl::string_view arg_name, DataType type);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_SIGNATURE_H_
