// SPDX-License-Identifier: Apache-2.0
// What an op takes and gives, and where it can run.
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

// TensorFlow's numbers here, and not ferry::DataType: resources have a type as well.
using tensorflow::DataType;

// "float", "resource", "float_ref"; "INVALID" for 0 and numbers that are not listed.
std::string TypeName(DataType type);

// Of "int32"; DT_INVALID if there is none of that name.
DataType TypeOfName(absl::string_view name);

enum class AttrKind { kString, kInt, kFloat, kBool, kType, kShape, kTensor, kFunc };

struct AttrSchema {
  std::string name;
  AttrKind kind = AttrKind::kInt;
  bool is_list = false;
  std::optional<tensorflow::AttrValue> default_value;
  // Of an int's value, or of a list's length.
  int64_t minimum = std::numeric_limits<int64_t>::min();
  // Of kType and of kString; empty: any.
  std::vector<DataType> allowed_types;
  std::vector<std::string> allowed_strings;
};

// One argument: a tensor, several of one type, or several whose types are a list.
struct ArgSchema {
  std::string name;
  // DT_INVALID: the attribute says it.
  DataType type = tensorflow::DT_INVALID;
  std::string type_attr;
  std::string number_attr;
  std::string type_list_attr;
};

// Where an op can run, and with which types.
struct KernelSchema {
  // "CPU", "GPU".
  std::string device_type;
  // Which attribute must be one of these types; empty: it runs with any.
  std::string type_attr;
  std::vector<DataType> types;
  // Arguments that are in the host's memory even if the device is another one; "*" for all.
  std::vector<std::string> host_args;
};

struct OpSchema {
  std::string name;
  std::vector<ArgSchema> inputs;
  std::vector<ArgSchema> outputs;
  std::vector<AttrSchema> attrs;
  std::vector<KernelSchema> kernels;
  // Has an effect, or gives another result each time: never run twice, never left out once it is
  // reached.
  bool is_stateful = false;

  const AttrSchema* FindAttr(absl::string_view attr) const;
};

// Of types that are never in a device's memory.
inline bool IsAlwaysOnHost(DataType type) {
  return type == tensorflow::DT_STRING || type == tensorflow::DT_RESOURCE ||
         type == tensorflow::DT_VARIANT;
}

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_OP_SCHEMA_H_
