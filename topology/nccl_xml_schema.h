// SPDX-License-Identifier: Apache-2.0
// The elements and attributes of NCCL's topology XML, and the types of their values.
#ifndef FERRY_TOPOLOGY_NCCL_XML_SCHEMA_H_
#define FERRY_TOPOLOGY_NCCL_XML_SCHEMA_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "topology/nccl_xml.h"

namespace ferry {

enum class NcclValueKind {
  kText,
  kInteger,  // decimal or 0x hexadecimal, may be negative, within 32 bits
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
  absl::string_view parents;  // for error texts: "<cpu> or <pci>"
  absl::Span<const NcclAttributeSpec> attributes;
};

// Returns the element called `name`, or null.
const NcclElementSpec* FindNcclElement(absl::string_view name);
const NcclElementSpec& NcclElementSpecOf(NcclElementKind kind);

// True if NCCL reads `child` inside `parent`.
bool IsNcclChild(NcclElementKind parent, NcclElementKind child);

// Returns what is wrong with a value, for error texts ("is not a whole number"), or nullopt.
std::optional<absl::string_view> CheckNcclValue(const NcclAttributeSpec& spec,
                                                absl::string_view value);

// Parses a kInteger as NCCL does; nullopt if it is malformed.
std::optional<int> ParseNcclInteger(absl::string_view text);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_NCCL_XML_SCHEMA_H_
