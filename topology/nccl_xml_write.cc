// SPDX-License-Identifier: Apache-2.0
// Accessors and the writer of NCCL's topology XML.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "topology/nccl_xml.h"
#include "topology/nccl_xml_schema.h"

namespace ferry {
namespace {

constexpr int kIndent = 2;

std::string Escaped(absl::string_view value) {
  return absl::StrReplaceAll(
      value, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&apos;"}});
}

void Append(const NcclElement& element, int indent, std::string& text) {
  const absl::string_view name = NcclElementName(element.kind);
  text.append(static_cast<size_t>(indent), ' ');
  absl::StrAppend(&text, "<", name);
  for (const NcclAttribute& attribute : element.attributes) {
    absl::StrAppend(&text, " ", attribute.name, "=\"", Escaped(attribute.value), "\"");
  }
  if (element.children.empty()) {
    absl::StrAppend(&text, "/>\n");
    return;
  }
  absl::StrAppend(&text, ">\n");
  for (const NcclElement& child : element.children) Append(child, indent + kIndent, text);
  text.append(static_cast<size_t>(indent), ' ');
  absl::StrAppend(&text, "</", name, ">\n");
}

}  // namespace

absl::string_view NcclElementName(NcclElementKind kind) { return NcclElementSpecOf(kind).name; }

std::optional<absl::string_view> NcclElement::Attribute(absl::string_view name) const {
  for (const NcclAttribute& attribute : attributes) {
    if (attribute.name == name) return absl::string_view(attribute.value);
  }
  return std::nullopt;
}

int NcclElement::NumberOr(absl::string_view name, int fallback) const {
  return ParseNcclInteger(Attribute(name).value_or("")).value_or(fallback);
}

std::string WriteNcclXml(const NcclTopology& topology) {
  std::string text;
  Append(topology.system, 0, text);
  return text;
}

}  // namespace ferry
