// SPDX-License-Identifier: Apache-2.0
// Parses names.
#include "tensorflow/graph/names.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ferry::graph {
namespace {

constexpr size_t kShownBytes = 256;

bool IsFirst(char c) { return absl::ascii_isalnum(c) || c == '.'; }
bool IsLater(char c) { return IsFirst(c) || c == '_' || c == '-' || c == '/' || c == '\\'; }

int SaturatedNumber(absl::string_view digits) {
  int64_t number = 0;
  for (const char digit : digits) {
    number = number * 10 + (digit - '0');
    if (number > std::numeric_limits<int>::max()) return std::numeric_limits<int>::max();
  }
  return static_cast<int>(number);
}

// Returns the digits after the last ':'; nullopt if there is anything else or nothing.
std::optional<absl::string_view> PortDigits(absl::string_view name) {
  const size_t colon = name.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  const absl::string_view digits = name.substr(colon + 1);
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit)) {
    return std::nullopt;
  }
  return digits;
}

}  // namespace

bool IsNodeName(absl::string_view name, bool is_internal) {
  if (is_internal && name.size() > 1 && name[0] == '_') name.remove_prefix(1);
  bool is_first = true;
  for (const char c : name) {
    if (c == '>' && !is_first) {
      is_first = true;
    } else if (is_first ? !IsFirst(c) : !IsLater(c)) {
      return false;
    } else {
      is_first = false;
    }
  }
  return !is_first;
}

std::optional<InputName> ParseInputName(absl::string_view input, bool is_internal) {
  InputName parsed;
  if (!input.empty() && input[0] == '^') {
    parsed.is_control = true;
    parsed.node = input.substr(1);
  } else {
    parsed.node = input;
    if (const auto digits = PortDigits(input)) {
      if (digits->size() > 1 && (*digits)[0] == '0') return std::nullopt;
      parsed.node.remove_suffix(digits->size() + 1);
      parsed.port = SaturatedNumber(*digits);
    }
  }
  if (!IsNodeName(parsed.node, is_internal)) return std::nullopt;
  return parsed;
}

InputName ParseTensorName(absl::string_view name) {
  if (!name.empty() && name[0] == '^') return {name.substr(1), 0, true};
  const auto digits = PortDigits(name);
  if (!digits.has_value()) return {name, 0, false};
  return {name.substr(0, name.size() - digits->size() - 1), SaturatedNumber(*digits), false};
}

std::string TensorText(absl::string_view node, int port) { return absl::StrCat(node, ":", port); }

std::string Shown(absl::string_view name) {
  if (name.size() <= kShownBytes) return absl::CEscape(name);
  return absl::StrCat(absl::CEscape(name.substr(0, kShownBytes / 2)), "...",
                      absl::CEscape(name.substr(name.size() - kShownBytes / 2)));
}

std::string AboutNode(absl::string_view name) {
  return absl::StrCat("\n\t [[{{node ", Shown(name), "}}]]");
}

}  // namespace ferry::graph
