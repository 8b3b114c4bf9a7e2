// SPDX-License-Identifier: Apache-2.0
// How ops are written down.
#ifndef FERRY_TENSORFLOW_GRAPH_OP_LIST_H_
#define FERRY_TENSORFLOW_GRAPH_OP_LIST_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry::graph {

// One op. A word in braces with a $ in front is a group of types (op_registry.cc).
struct OpRow {
  absl::string_view name;
  // "x:T y:int32 -> z:T": after the colon a type, an attribute that is one, "N*T" for N tensors of
  // type T, "[T]" for as many as the list T has types.
  absl::string_view signature;
  // "T:type{int32 int64}=int32; N:int>=1; axes:list(int)=": kind, allowed values, least value or
  // length, default.
  absl::string_view attrs;
  // "CPU T{$number}; GPU T{int32}@x,y": where it runs, with which types, and which arguments are in
  // the host's memory all the same (* for all).
  absl::string_view kernels;
  bool is_stateful = false;
};

absl::Span<const OpRow> OpRows();

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_OP_LIST_H_
