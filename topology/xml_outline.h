// SPDX-License-Identifier: Apache-2.0
// A strict look at the structure of an XML text before a parser sees it, for errors that say where.
#ifndef FERRY_TOPOLOGY_XML_OUTLINE_H_
#define FERRY_TOPOLOGY_XML_OUTLINE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

struct XmlLimits {
  size_t max_bytes = 0;
  size_t max_elements = 0;
  int max_depth = 0;
};

struct XmlTag {
  size_t offset = 0;  // of its '<'
  int line = 0;       // from 1
  std::string name;
};

// The opening tags of a document, in its order.
struct XmlOutline {
  std::vector<XmlTag> tags;

  // The last tag that opens at or before `offset`; null before the first.
  const XmlTag* TagAt(size_t offset) const;
};

// Checks that `text` is one element with properly nested elements in it and nothing else but
// comments and processing instructions: no document type, no entities beyond the five predefined
// ones, no text. Works in one pass, without recursion, in memory linear in the text. Errors:
// INVALID_ARGUMENT beginning with "line N: <element>"; RESOURCE_EXHAUSTED above a limit.
absl::StatusOr<XmlOutline> OutlineXml(absl::string_view text, const XmlLimits& limits);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_XML_OUTLINE_H_
