// SPDX-License-Identifier: Apache-2.0
// OpRow: the notation of the op table.
#ifndef FERRY_TENSORFLOW_GRAPH_OP_LIST_H_
#define FERRY_TENSORFLOW_GRAPH_OP_LIST_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry::graph {

// One op. "{$name}" refers to a group of types (op_registry.cc).
struct OpRow {
  absl::string_view name;
  // "x:T y:int32 -> z:T": after the colon a type, or an attribute that holds one; "N*T" for N
  // tensors of type T; "[T]" for one tensor per type of the list T.
  absl::string_view signature;
  // "T:type{int32 int64}=int32; N:int>=1; axes:list(int)=": kind, allowed values, minimum value or
  // length, default.
  absl::string_view attrs;
  // "CPU T{$number}; GPU T{int32}@x,y": device types, supported types, and the arguments that are
  // in host memory regardless of the device (* for all).
  absl::string_view kernels;
  bool is_stateful = false;
};

absl::Span<const OpRow> OpRows();

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_OP_LIST_H_
