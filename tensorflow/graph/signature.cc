// SPDX-License-Identifier: Apache-2.0
// Validates attributes and derives types.
#include "tensorflow/graph/signature.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "tensorflow/graph/names.h"

namespace ferry::graph {
namespace {

using tensorflow::AttrValue;
using tensorflow::NodeDef;

absl::string_view KindName(AttrKind kind) {
  switch (kind) {
    case AttrKind::kString:
      return "string";
    case AttrKind::kInt:
      return "int";
    case AttrKind::kFloat:
      return "float";
    case AttrKind::kBool:
      return "bool";
    case AttrKind::kType:
      return "type";
    case AttrKind::kShape:
      return "shape";
    case AttrKind::kTensor:
      return "tensor";
    case AttrKind::kFunc:
      return "func";
  }
  return "";
}

// The kind of a value, in the same terms.
absl::string_view ValueName(const AttrValue& value) {
  switch (value.value_case()) {
    case AttrValue::kS:
      return "string";
    case AttrValue::kI:
      return "int";
    case AttrValue::kF:
      return "float";
    case AttrValue::kB:
      return "bool";
    case AttrValue::kType:
      return "type";
    case AttrValue::kShape:
      return "shape";
    case AttrValue::kTensor:
      return "tensor";
    case AttrValue::kFunc:
      return "func";
    case AttrValue::kPlaceholder:
      return "placeholder";
    case AttrValue::kList:
      return "list";
    case AttrValue::VALUE_NOT_SET:
      break;
  }
  return "nothing";
}

struct ListSizes {
  int of_kind = 0;
  int all = 0;
};

ListSizes SizesOf(const AttrValue::ListValue& list, AttrKind kind) {
  const int sizes[] = {list.s_size(),    list.i_size(),     list.f_size(),      list.b_size(),
                       list.type_size(), list.shape_size(), list.tensor_size(), list.func_size()};
  ListSizes result;
  result.of_kind = sizes[static_cast<int>(kind)];
  for (const int size : sizes) result.all += size;
  return result;
}

std::string AboutAttr(const AttrSchema& attr, const NodeDef& node) {
  return absl::StrCat("\n\t for attr '", attr.name, "'", AboutNode(node.name()));
}

absl::Status CheckKind(const AttrSchema& attr, const AttrValue& value, const NodeDef& node) {
  if (!attr.is_list) {
    if (ValueName(value) == KindName(attr.kind)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("AttrValue had value with type '", ValueName(value), "' when '",
                     KindName(attr.kind), "' expected", AboutAttr(attr, node)));
  }
  if (value.value_case() != AttrValue::kList) {
    return absl::InvalidArgumentError(
        absl::StrCat("AttrValue missing value with expected type 'list(", KindName(attr.kind), ")'",
                     AboutAttr(attr, node)));
  }
  const ListSizes sizes = SizesOf(value.list(), attr.kind);
  if (sizes.of_kind != sizes.all) {
    return absl::InvalidArgumentError(
        absl::StrCat("AttrValue had a list of other things when 'list(", KindName(attr.kind),
                     ")' expected", AboutAttr(attr, node)));
  }
  if (sizes.all < attr.minimum) {
    return absl::InvalidArgumentError(absl::StrCat("Length for attr '", attr.name, "' of ",
                                                   sizes.all, " must be at least minimum ",
                                                   attr.minimum, AboutNode(node.name())));
  }
  return absl::OkStatus();
}

absl::Status CheckType(const AttrSchema& attr, DataType type, const NodeDef& node) {
  if (TypeName(type) == "INVALID") {
    return absl::InvalidArgumentError(absl::StrCat(
        "AttrValue has invalid DataType enum: ", static_cast<int>(type), AboutAttr(attr, node)));
  }
  // Reference types predate resource variables and are not supported.
  if (type > 100) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AttrValue must not have reference type value of ", TypeName(type), AboutAttr(attr, node)));
  }
  const std::vector<DataType>& allowed = attr.allowed_types;
  if (allowed.empty() || std::find(allowed.begin(), allowed.end(), type) != allowed.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Value for attr '", attr.name, "' of ", TypeName(type),
      " is not in the list of allowed values: ",
      absl::StrJoin(allowed, ", ",
                    [](std::string* out, DataType one) { absl::StrAppend(out, TypeName(one)); }),
      AboutNode(node.name())));
}

absl::Status CheckValue(const AttrSchema& attr, const AttrValue& value, const NodeDef& node) {
  FERRY_RETURN_IF_ERROR(CheckKind(attr, value, node));
  if (attr.kind == AttrKind::kType) {
    if (!attr.is_list) return CheckType(attr, value.type(), node);
    for (const int type : value.list().type()) {
      FERRY_RETURN_IF_ERROR(CheckType(attr, static_cast<DataType>(type), node));
    }
  }
  if (attr.kind == AttrKind::kInt && !attr.is_list && value.i() < attr.minimum) {
    return absl::InvalidArgumentError(absl::StrCat("Value for attr '", attr.name, "' of ",
                                                   value.i(), " must be at least minimum ",
                                                   attr.minimum, AboutNode(node.name())));
  }
  const std::vector<std::string>& allowed = attr.allowed_strings;
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), value.s()) == allowed.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Value for attr '", attr.name, "' of \"", Shown(value.s()),
                     "\" is not in the list of allowed values: \"",
                     absl::StrJoin(allowed, "\", \""), "\"", AboutNode(node.name())));
  }
  return absl::OkStatus();
}

absl::Status AddArgs(const std::vector<ArgSchema>& args, const NodeDef& node, TypeList& types) {
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgSchema& arg = args[i];
    const int index = static_cast<int>(i);
    if (!arg.type_list_attr.empty()) {
      for (const int type : node.attr().at(arg.type_list_attr).list().type()) {
        types.Add(static_cast<DataType>(type), 1, index);
      }
      continue;
    }
    const int64_t count = arg.number_attr.empty() ? 1 : node.attr().at(arg.number_attr).i();
    // `count` is tested first, so both terms are below 2^31 and the sum cannot overflow.
    if (count > std::numeric_limits<int>::max() ||
        types.size() + count > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("Value for attr '", arg.number_attr, "' of ",
                                                     count, " is more than a node can have",
                                                     AboutNode(node.name())));
    }
    types.Add(arg.type_attr.empty() ? arg.type : node.attr().at(arg.type_attr).type(), count,
              index);
  }
  return absl::OkStatus();
}

}  // namespace

void TypeList::Add(DataType type, int64_t count, int arg) {
  if (count == 0) return;
  const int64_t end = size() + count;
  if (!runs_.empty() && runs_.back().type == type && runs_.back().arg == arg) {
    runs_.back().end = end;
  } else {
    runs_.push_back({type, end, arg});
  }
}

const TypeList::Run& TypeList::RunOf(int64_t index) const {
  FERRY_CHECK(index >= 0 && index < size());
  return *std::upper_bound(runs_.begin(), runs_.end(), index,
                           [](int64_t value, const Run& run) { return value < run.end; });
}

void FillDefaults(const OpSchema& op, NodeDef& node) {
  for (const AttrSchema& attr : op.attrs) {
    if (!attr.default_value.has_value() || node.attr().contains(attr.name)) continue;
    (*node.mutable_attr())[attr.name] = *attr.default_value;
  }
}

absl::Status CheckAttrs(const OpSchema& op, const NodeDef& node) {
  for (const AttrSchema& attr : op.attrs) {
    const auto found = node.attr().find(attr.name);
    if (found == node.attr().end()) {
      return absl::NotFoundError(
          absl::StrCat("No attr named '", attr.name, "' in NodeDef:", AboutNode(node.name())));
    }
    FERRY_RETURN_IF_ERROR(CheckValue(attr, found->second, node));
  }
  return absl::OkStatus();
}

absl::StatusOr<Signature> SignatureOf(const OpSchema& op, const NodeDef& node) {
  Signature signature;
  FERRY_RETURN_IF_ERROR(AddArgs(op.inputs, node, signature.inputs));
  FERRY_RETURN_IF_ERROR(AddArgs(op.outputs, node, signature.outputs));
  return signature;
}

std::string TypeAttrsText(const OpSchema& op, const NodeDef& node) {
  std::vector<std::string> parts;
  for (const AttrSchema& attr : op.attrs) {
    const auto found = node.attr().find(attr.name);
    if (found == node.attr().end() || attr.is_list) continue;
    if (attr.kind == AttrKind::kType) {
      parts.push_back(
          absl::StrCat(attr.name, "=", tensorflow::DataType_Name(found->second.type())));
    } else if (attr.kind == AttrKind::kInt) {
      parts.push_back(absl::StrCat(attr.name, "=", found->second.i()));
    }
  }
  return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
}

const KernelSchema* FindKernel(const OpSchema& op, const NodeDef& node,
                               absl::string_view device_type) {
  for (const KernelSchema& kernel : op.kernels) {
    if (kernel.device_type != device_type) continue;
    if (kernel.type_attr.empty()) return &kernel;
    const DataType type = node.attr().at(kernel.type_attr).type();
    if (std::find(kernel.types.begin(), kernel.types.end(), type) != kernel.types.end()) {
      return &kernel;
    }
  }
  return nullptr;
}

bool IsInHostMemory(const KernelSchema& kernel, absl::string_view arg_name, DataType type) {
  if (kernel.device_type == "CPU") return false;
  if (IsAlwaysOnHost(type)) return true;
  for (const std::string& arg : kernel.host_args) {
    if (arg == "*" || arg == arg_name) return true;
  }
  return false;
}

}  // namespace ferry::graph
