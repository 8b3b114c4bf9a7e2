// SPDX-License-Identifier: Apache-2.0
// Normalises PCI bus ids.
#include "topology/pci_bus_id.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace ferry {
namespace {

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
}

}  // namespace

std::optional<std::string> NormalizePciBusId(absl::string_view text) {
  constexpr size_t kTailBytes = 8;  // ":bb:dd.f"
  constexpr size_t kDomainDigits = 4;
  if (text.size() < kDomainDigits + kTailBytes || text.size() > 2 * kDomainDigits + kTailBytes) {
    return std::nullopt;
  }
  absl::string_view domain = text.substr(0, text.size() - kTailBytes);
  const absl::string_view tail = text.substr(domain.size());
  if (tail[0] != ':' || tail[3] != ':' || tail[6] != '.') return std::nullopt;
  if (!IsHex(domain) || !IsHex(tail.substr(1, 2)) || !IsHex(tail.substr(4, 2)) ||
      !IsHex(tail.substr(7, 1))) {
    return std::nullopt;
  }
  while (domain.size() > kDomainDigits && domain[0] == '0') domain.remove_prefix(1);
  std::string normal(domain);
  normal.append(tail.data(), tail.size());
  absl::AsciiStrToLower(&normal);
  return normal;
}

}  // namespace ferry
