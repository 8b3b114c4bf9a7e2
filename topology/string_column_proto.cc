// SPDX-License-Identifier: Apache-2.0
// Front coding of string lists.
#include "topology/string_column_proto.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr size_t kUuidBytes = 16;
constexpr size_t kUuidTextBytes = 36;
constexpr size_t kDashes[] = {8, 13, 18, 23};

bool IsLowerHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

// Returns the 16 bytes of "8-4-4-4-12" lower-case hexadecimal digits, or nullopt.
std::optional<std::string> UuidToRaw(absl::string_view text) {
  if (text.size() != kUuidTextBytes) return std::nullopt;
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool dash = std::find(std::begin(kDashes), std::end(kDashes), i) != std::end(kDashes);
    if (dash ? text[i] != '-' : !IsLowerHex(text[i])) return std::nullopt;
    if (!dash) digits.push_back(text[i]);
  }
  return absl::HexStringToBytes(digits);
}

std::string RawToUuid(absl::string_view raw) {
  std::string text = absl::BytesToHexString(raw);
  for (const size_t dash : kDashes) text.insert(dash, "-");
  return text;
}

// Returns all strings as raw UUIDs behind one prefix, or nullopt.
std::optional<std::vector<std::string>> AllToRaw(absl::Span<const std::string> strings,
                                                 absl::string_view prefix) {
  std::vector<std::string> raws;
  raws.reserve(strings.size());
  for (const std::string& text : strings) {
    absl::string_view rest = text;
    if (!absl::ConsumePrefix(&rest, prefix)) return std::nullopt;
    std::optional<std::string> raw = UuidToRaw(rest);
    if (!raw.has_value()) return std::nullopt;
    raws.push_back(*std::move(raw));
  }
  return raws;
}

void FrontCode(absl::Span<const std::string> strings, v1::StringColumn& column) {
  absl::string_view previous;
  for (const std::string& text : strings) {
    const size_t limit = std::min(previous.size(), text.size());
    size_t shared = 0;
    while (shared < limit && previous[shared] == text[shared]) ++shared;
    column.add_shared_bytes(static_cast<uint32_t>(shared));
    column.add_own_bytes(static_cast<uint32_t>(text.size() - shared));
    column.mutable_own()->append(text, shared, std::string::npos);
    previous = text;
  }
}

absl::Status Inconsistent(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("topology column ", name, ": ", what));
}

absl::StatusOr<std::vector<std::string>> UnpackWhole(const v1::StringColumn& column, size_t count,
                                                     absl::string_view name) {
  if (!column.uuids() || column.own().size() != count * kUuidBytes) {
    return Inconsistent(name, absl::StrCat(column.own().size(), " bytes for ", count, " strings"));
  }
  std::vector<std::string> strings;
  strings.reserve(count);
  for (size_t i = 0; i < count; ++i)
    strings.push_back(column.own().substr(i * kUuidBytes, kUuidBytes));
  return strings;
}

absl::StatusOr<std::vector<std::string>> UnpackFrontCoded(const v1::StringColumn& column,
                                                          size_t count, size_t max_bytes,
                                                          absl::string_view name) {
  if (static_cast<size_t>(column.shared_bytes_size()) != count ||
      static_cast<size_t>(column.own_bytes_size()) != count) {
    return Inconsistent(name,
                        absl::StrCat(column.shared_bytes_size(), " and ", column.own_bytes_size(),
                                     " lengths for ", count, " strings"));
  }
  std::vector<std::string> strings;
  strings.reserve(count);
  absl::string_view previous;
  absl::string_view rest = column.own();
  for (size_t i = 0; i < count; ++i) {
    const size_t shared = column.shared_bytes(static_cast<int>(i));
    const size_t own = column.own_bytes(static_cast<int>(i));
    if (shared > previous.size() || own > rest.size() || shared + own > max_bytes) {
      return Inconsistent(
          name, absl::StrCat("string ", i, " has impossible lengths ", shared, " and ", own));
    }
    strings.push_back(absl::StrCat(previous.substr(0, shared), rest.substr(0, own)));
    rest.remove_prefix(own);
    previous = strings.back();
  }
  if (!rest.empty()) return Inconsistent(name, absl::StrCat(rest.size(), " bytes too many"));
  return strings;
}

}  // namespace

v1::StringColumn PackStrings(absl::Span<const std::string> strings) {
  v1::StringColumn column;
  if (std::all_of(strings.begin(), strings.end(),
                  [](const std::string& text) { return text.empty(); })) {
    return column;
  }
  for (const char* prefix : {"", "GPU-", "MIG-"}) {
    const std::optional<std::vector<std::string>> raws = AllToRaw(strings, prefix);
    if (!raws.has_value()) continue;
    column.set_prefix(prefix);
    column.set_uuids(true);
    FrontCode(*raws, column);
    v1::StringColumn whole;
    whole.set_prefix(prefix);
    whole.set_uuids(true);
    for (const std::string& raw : *raws) whole.mutable_own()->append(raw);
    return whole.ByteSizeLong() <= column.ByteSizeLong() ? whole : column;
  }
  FrontCode(strings, column);
  return column;
}

absl::StatusOr<std::vector<std::string>> UnpackStrings(const v1::StringColumn& column, size_t count,
                                                       size_t max_bytes, absl::string_view name) {
  const bool absent = column.own().empty() && column.shared_bytes_size() == 0;
  if (absent) return std::vector<std::string>(count);
  std::vector<std::string> strings;
  if (column.shared_bytes_size() == 0) {
    FERRY_ASSIGN_OR_RETURN(strings, UnpackWhole(column, count, name));
  } else {
    FERRY_ASSIGN_OR_RETURN(strings, UnpackFrontCoded(column, count, max_bytes, name));
  }
  for (std::string& text : strings) {
    if (column.uuids() && text.size() != kUuidBytes) {
      return Inconsistent(name, absl::StrCat("a UUID of ", text.size(), " bytes"));
    }
    text = absl::StrCat(column.prefix(), column.uuids() ? RawToUuid(text) : text);
    if (text.size() > max_bytes) return Inconsistent(name, "a string is too long");
  }
  return strings;
}

}  // namespace ferry
