// SPDX-License-Identifier: Apache-2.0
// UTF-8 decoding in one pass.
#include "launch/printable.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"

namespace ferry {
namespace {

// Returns true if the character can be written to a terminal unchanged.
bool Prints(uint32_t character) {
  const bool is_control = character < 0x20 || (character >= 0x7f && character < 0xa0);
  // These change how a line is displayed (Unicode Standard Annex 9, "Directional Formatting
  // Characters"), or end it.
  const bool is_formatting =
      (character >= 0x2028 && character <= 0x202e) || (character >= 0x2066 && character <= 0x2069);
  return !is_control && !is_formatting;
}

// Returns the size in bytes of the first character if it is printable; else 0, also for invalid
// UTF-8.
// Source: RFC 3629, "UTF-8 definition".
size_t PrintingBytes(absl::string_view bytes) {
  const auto at = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return Prints(first) ? 1 : 0;
  const size_t count = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  const bool may_begin = first >= 0xc2 && first <= 0xf4;
  if (!may_begin || bytes.size() < count) return 0;
  uint32_t character = first & (0xff >> (count + 1));
  for (size_t i = 1; i < count; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    character = character << 6 | (at(i) & 0x3f);
  }
  const bool is_overlong = character < (count == 4 ? 0x10000U : count == 3 ? 0x800U : 0x80U);
  const bool is_surrogate = character >= 0xd800 && character <= 0xdfff;
  if (is_overlong || is_surrogate || character > 0x10ffff) return 0;
  return Prints(character) ? count : 0;
}

std::string Escape(absl::string_view bytes, absl::string_view kept) {
  std::string text;
  while (!bytes.empty()) {
    size_t count = PrintingBytes(bytes);
    if (count == 0 && kept.find(bytes.front()) != absl::string_view::npos) count = 1;
    text += count == 0 ? absl::CEscape(bytes.substr(0, 1)) : std::string(bytes.substr(0, count));
    bytes.remove_prefix(count == 0 ? 1 : count);
  }
  return text;
}

}  // namespace

std::string Printable(absl::string_view bytes) { return Escape(bytes, ""); }

std::string PrintableText(absl::string_view bytes) { return Escape(bytes, "\n\t"); }

}  // namespace ferry
