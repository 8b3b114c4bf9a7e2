// SPDX-License-Identifier: Apache-2.0
// Parses the op table once.
#include "tensorflow/graph/op_registry.h"

#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"
#include "tensorflow/graph/op_list.h"

namespace ferry::graph {
namespace {

using Registry = absl::btree_map<std::string, OpSchema, std::less<>>;

// Groups of types that rows refer to with "$".
struct TypeGroup {
  absl::string_view name;
  absl::string_view types;
};
constexpr TypeGroup kTypeGroups[] = {
    {"$real", "bfloat16 half float double"},
    {"$complex", "complex64 complex128"},
    {"$integer", "uint8 uint16 uint32 uint64 int8 int16 int32 int64"},
    {"$number",
     "bfloat16 half float double uint8 uint16 uint32 uint64 int8 int16 int32 int64 complex64 "
     "complex128"},
    {"$quantized", "qint8 quint8 qint32 qint16 quint16"},
    // Types that GPU memory can hold, except int32.
    {"$device",
     "half bfloat16 float double uint8 int8 uint16 int16 uint32 uint64 int64 bool complex64 "
     "complex128"},
};

std::vector<absl::string_view> Words(absl::string_view text, absl::string_view separators) {
  return absl::StrSplit(text, absl::ByAnyChar(separators), absl::SkipWhitespace());
}

std::vector<DataType> ParseTypes(absl::string_view text) {
  std::vector<DataType> types;
  for (const absl::string_view word : Words(text, " ")) {
    const TypeGroup* group = nullptr;
    for (const TypeGroup& candidate : kTypeGroups) {
      if (candidate.name == word) group = &candidate;
    }
    for (const absl::string_view name : Words(group == nullptr ? word : group->types, " ")) {
      types.push_back(TypeOfName(name));
      FERRY_CHECK(types.back() != tensorflow::DT_INVALID);
    }
  }
  return types;
}

// Cuts "{...}" out of `text`, if present.
absl::string_view TakeBraces(absl::string_view& text) {
  const size_t open = text.find('{');
  if (open == absl::string_view::npos) return {};
  const size_t close = text.find('}', open);
  FERRY_CHECK(close != absl::string_view::npos);
  const absl::string_view inside = text.substr(open + 1, close - open - 1);
  // Drops the text before the brace too: it is a plain name.
  text = text.substr(close + 1);
  return inside;
}

std::vector<ArgSchema> ParseArgs(absl::string_view text) {
  std::vector<ArgSchema> args;
  for (const absl::string_view word : Words(text, " ")) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits(':', 1));
    ArgSchema arg;
    arg.name = std::string(parts.first);
    absl::string_view type = parts.second;
    if (absl::ConsumePrefix(&type, "[")) {
      FERRY_CHECK(absl::ConsumeSuffix(&type, "]"));
      arg.type_list_attr = std::string(type);
    } else {
      if (const size_t star = type.find('*'); star != absl::string_view::npos) {
        arg.number_attr = std::string(type.substr(0, star));
        type.remove_prefix(star + 1);
      }
      arg.type = TypeOfName(type);
      if (arg.type == tensorflow::DT_INVALID) arg.type_attr = std::string(type);
    }
    args.push_back(std::move(arg));
  }
  return args;
}

AttrKind ParseKind(absl::string_view name) {
  constexpr std::pair<absl::string_view, AttrKind> kKinds[] = {
      {"string", AttrKind::kString}, {"int", AttrKind::kInt},   {"float", AttrKind::kFloat},
      {"bool", AttrKind::kBool},     {"type", AttrKind::kType}, {"shape", AttrKind::kShape},
      {"tensor", AttrKind::kTensor}, {"func", AttrKind::kFunc},
  };
  for (const auto& [word, kind] : kKinds) {
    if (word == name) return kind;
  }
  FERRY_CHECK(false);
  return AttrKind::kInt;
}

tensorflow::AttrValue ParseDefault(const AttrSchema& attr, absl::string_view text) {
  tensorflow::AttrValue value;
  if (attr.is_list) {
    FERRY_CHECK(text.empty());
    value.mutable_list();
    return value;
  }
  int64_t number = 0;
  switch (attr.kind) {
    case AttrKind::kString:
      value.set_s(std::string(text));
      break;
    case AttrKind::kInt:
      FERRY_CHECK(absl::SimpleAtoi(text, &number));
      value.set_i(number);
      break;
    case AttrKind::kFloat:
      FERRY_CHECK(absl::SimpleAtoi(text, &number));
      value.set_f(static_cast<float>(number));
      break;
    case AttrKind::kBool:
      FERRY_CHECK(text == "true" || text == "false");
      value.set_b(text == "true");
      break;
    case AttrKind::kType:
      value.set_type(TypeOfName(text));
      break;
    case AttrKind::kShape:
      FERRY_CHECK(text == "unknown");
      value.mutable_shape()->set_unknown_rank(true);
      break;
    default:
      FERRY_CHECK(false);
  }
  return value;
}

AttrSchema ParseAttr(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(text), absl::MaxSplits(':', 1));
  AttrSchema attr;
  attr.name = std::string(parts.first);
  absl::string_view rest = parts.second;
  attr.is_list = absl::ConsumePrefix(&rest, "list(");
  const absl::string_view kind = rest.substr(0, rest.find_first_of("){>="));
  attr.kind = ParseKind(kind);
  rest.remove_prefix(kind.size());
  if (attr.is_list) FERRY_CHECK(absl::ConsumePrefix(&rest, ")"));
  const absl::string_view allowed = TakeBraces(rest);
  if (attr.kind == AttrKind::kType) {
    attr.allowed_types = ParseTypes(allowed);
  } else {
    for (const absl::string_view word : Words(allowed, " ")) {
      attr.allowed_strings.emplace_back(word);
    }
  }
  if (absl::ConsumePrefix(&rest, ">=")) {
    const absl::string_view least = rest.substr(0, rest.find('='));
    FERRY_CHECK(absl::SimpleAtoi(least, &attr.minimum));
    rest.remove_prefix(least.size());
  }
  if (absl::ConsumePrefix(&rest, "=")) attr.default_value = ParseDefault(attr, rest);
  return attr;
}

KernelSchema ParseKernel(absl::string_view text) {
  KernelSchema kernel;
  text = absl::StripAsciiWhitespace(text);
  if (const size_t at = text.find('@'); at != absl::string_view::npos) {
    for (const absl::string_view arg : Words(text.substr(at + 1), ",")) {
      kernel.host_args.emplace_back(arg);
    }
    text = text.substr(0, at);
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  kernel.device_type = std::string(parts.first);
  absl::string_view constraint = parts.second;
  kernel.type_attr = std::string(constraint.substr(0, constraint.find('{')));
  kernel.types = ParseTypes(TakeBraces(constraint));
  return kernel;
}

OpSchema ParseRow(const OpRow& row) {
  OpSchema op;
  op.name = std::string(row.name);
  const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(row.signature, "->");
  op.inputs = ParseArgs(sides.first);
  op.outputs = ParseArgs(sides.second);
  for (const absl::string_view attr : Words(row.attrs, ";")) op.attrs.push_back(ParseAttr(attr));
  for (const absl::string_view kernel : Words(row.kernels, ";")) {
    op.kernels.push_back(ParseKernel(kernel));
  }
  op.is_stateful = row.is_stateful;
  return op;
}

const Registry& Ops() {
  static const Registry* const kOps = [] {
    auto* const ops = new Registry;
    for (const OpRow& row : OpRows()) {
      FERRY_CHECK(ops->emplace(std::string(row.name), ParseRow(row)).second);
    }
    return ops;
  }();
  return *kOps;
}

using Names = absl::flat_hash_set<absl::string_view>;

}  // namespace

const OpSchema* FindOp(absl::string_view name) {
  static const auto* const kByName = [] {
    auto* const by_name = new absl::flat_hash_map<absl::string_view, const OpSchema*>;
    for (const auto& [op_name, op] : Ops()) by_name->emplace(op_name, &op);
    return by_name;
  }();
  const auto found = kByName->find(name);
  return found == kByName->end() ? nullptr : found->second;
}

std::vector<const OpSchema*> AllOps() {
  std::vector<const OpSchema*> ops;
  for (const auto& [name, op] : Ops()) ops.push_back(&op);
  return ops;
}

bool IsControlFlowOp(absl::string_view name) {
  static const auto* const kNames = new Names{"Enter",
                                              "RefEnter",
                                              "Exit",
                                              "RefExit",
                                              "NextIteration",
                                              "LoopCond",
                                              "RefNextIteration",
                                              "Switch",
                                              "RefSwitch",
                                              "_SwitchN",
                                              "Merge",
                                              "RefMerge",
                                              "_XlaMerge",
                                              "ControlTrigger",
                                              "Abort",
                                              "RefSelect",
                                              "StackV2",
                                              "StackPushV2",
                                              "StackPopV2",
                                              "TensorArrayV3",
                                              "While",
                                              "StatelessWhile",
                                              "If",
                                              "StatelessIf",
                                              "Case",
                                              "For",
                                              "StatelessCase",
                                              "_While",
                                              "_If"};
  return kNames->contains(name);
}

bool IsFunctionCallOp(absl::string_view name) {
  static const auto* const kNames = new Names{"PartitionedCall",
                                              "StatefulPartitionedCall",
                                              "RemoteCall",
                                              "SymbolicGradient",
                                              "MapDefun",
                                              "XlaLaunch",
                                              "_Arg",
                                              "_Retval",
                                              "BatchFunction",
                                              "TPUPartitionedCall",
                                              "_DeviceArg",
                                              "_DeviceRetval",
                                              "Function"};
  return kNames->contains(name);
}

bool IsSendOp(absl::string_view name) { return name == "_Send" || name == "_HostSend"; }
bool IsRecvOp(absl::string_view name) { return name == "_Recv" || name == "_HostRecv"; }

}  // namespace ferry::graph
