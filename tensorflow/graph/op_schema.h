// SPDX-License-Identifier: Apache-2.0
// OpSchema: an op's arguments, attributes and kernels.
#ifndef FERRY_TENSORFLOW_GRAPH_OP_SCHEMA_H_
#define FERRY_TENSORFLOW_GRAPH_OP_SCHEMA_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "proto/tf_node.pb.h"
#include "proto/tf_types.pb.h"

namespace ferry::graph {

// TensorFlow's enum rather than ferry::DataType, because resources need a type too.
using tensorflow::DataType;

// "float", "resource", "float_ref"; "INVALID" for 0 and unknown numbers.
std::string TypeName(DataType type);

// Parses "int32"; returns DT_INVALID for an unknown name.
DataType TypeOfName(absl::string_view name);

enum class AttrKind { kString, kInt, kFloat, kBool, kType, kShape, kTensor, kFunc };

struct AttrSchema {
  std::string name;
  AttrKind kind = AttrKind::kInt;
  bool is_list = false;
  std::optional<tensorflow::AttrValue> default_value;
  // Minimum value of an int, or minimum length of a list.
  int64_t minimum = std::numeric_limits<int64_t>::min();
  // For kType and for kString; empty: no restriction.
  std::vector<DataType> allowed_types;
  std::vector<std::string> allowed_strings;
};

// One argument: a tensor, N tensors of one type, or a list of tensors with a list of types.
struct ArgSchema {
  std::string name;
  // DT_INVALID: the attribute gives the type.
  DataType type = tensorflow::DT_INVALID;
  std::string type_attr;
  std::string number_attr;
  std::string type_list_attr;
};

// A device type an op can run on, and with which types.
struct KernelSchema {
  // "CPU" or "GPU".
  std::string device_type;
  // The attribute that must be one of these types; empty: no restriction.
  std::string type_attr;
  std::vector<DataType> types;
  // Arguments that are in host memory even on another device; "*" for all.
  std::vector<std::string> host_args;
};

struct OpSchema {
  std::string name;
  std::vector<ArgSchema> inputs;
  std::vector<ArgSchema> outputs;
  std::vector<AttrSchema> attrs;
  std::vector<KernelSchema> kernels;
  // Has side effects, or a different result on each run: never run twice, never pruned once
  // reachable.
  bool is_stateful = false;

  const AttrSchema* FindAttr(absl::string_view attr) const;
};

// True for types that are never in device memory.
inline bool IsAlwaysOnHost(DataType type) {
  return type == tensorflow::DT_STRING || type == tensorflow::DT_RESOURCE ||
         type == tensorflow::DT_VARIANT;
}

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_OP_SCHEMA_H_
