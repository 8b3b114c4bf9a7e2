// SPDX-License-Identifier: Apache-2.0
// Which elements and attributes NCCL's topology XML has, and what their values look like.
#ifndef FERRY_TOPOLOGY_NCCL_XML_SCHEMA_H_
#define FERRY_TOPOLOGY_NCCL_XML_SCHEMA_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "topology/nccl_xml.h"

namespace ferry {

enum class NcclValueKind {
  kText,
  kInteger,  // decimal or 0x hexadecimal, perhaps negative, within 32 bits
  kHex64,    // 0x hexadecimal or decimal, within 64 bits
  kDecimal,  // a number with an optional fraction
  kBusId,    // a PCI bus id
  kMask,     // hexadecimal digits and commas
};

struct NcclAttributeSpec {
  absl::string_view name;
  NcclValueKind value = NcclValueKind::kText;
  bool required = false;
  bool may_be_empty = false;  // NCCL writes link_speed="" where sysfs has none
};

struct NcclElementSpec {
  NcclElementKind kind = NcclElementKind::kSystem;
  absl::string_view name;
  absl::string_view parents;  // for people: "<cpu> or <pci>"
  absl::Span<const NcclAttributeSpec> attributes;
};

// The element called `name`, or null.
const NcclElementSpec* FindNcclElement(absl::string_view name);
const NcclElementSpec& NcclElementSpecOf(NcclElementKind kind);

// Whether NCCL looks for `child` inside `parent`.
bool IsNcclChild(NcclElementKind parent, NcclElementKind child);

// What is wrong with a value, for people ("is not a whole number"), or nothing.
std::optional<absl::string_view> CheckNcclValue(const NcclAttributeSpec& spec,
                                                absl::string_view value);

// A kInteger as NCCL reads it. Nothing if it is none.
std::optional<int> ParseNcclInteger(absl::string_view text);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_NCCL_XML_SCHEMA_H_
