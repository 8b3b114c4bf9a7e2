// SPDX-License-Identifier: Apache-2.0
// Type names, and attribute lookup by name.
#include "tensorflow/graph/op_schema.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ferry::graph {
namespace {

// Added to a type's number to form its reference type.
constexpr int kReference = 100;

}  // namespace

std::string TypeName(DataType type) {
  const int base = type >= kReference ? type - kReference : type;
  const std::string& name = tensorflow::DataType_Name(static_cast<DataType>(base));
  if (base == tensorflow::DT_INVALID || name.empty()) return "INVALID";
  return absl::StrCat(absl::AsciiStrToLower(name.substr(3)), type >= kReference ? "_ref" : "");
}

DataType TypeOfName(absl::string_view name) {
  DataType type = tensorflow::DT_INVALID;
  tensorflow::DataType_Parse(absl::StrCat("DT_", absl::AsciiStrToUpper(name)), &type);
  return type;
}

const AttrSchema* OpSchema::FindAttr(absl::string_view attr) const {
  for (const AttrSchema& schema : attrs) {
    if (schema.name == attr) return &schema;
  }
  return nullptr;
}

}  // namespace ferry::graph
