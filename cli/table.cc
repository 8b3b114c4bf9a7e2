// SPDX-License-Identifier: Apache-2.0
// Aligns columns, and formats amounts.
#include "cli/table.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ferry::cli {
namespace {

// Counts all bytes except UTF-8 continuation bytes.
size_t Width(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        absl::string_view indent) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    if (widths.size() < row.size()) widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line(indent);
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - Width(row[i]) + 2, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string ShortBytes(double bytes) {
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    bytes /= 1024;
    if (bytes < 1023.95) return absl::StrFormat("%.1f %s", bytes, unit);
  }
  return absl::StrFormat("%.1f TiB", bytes / 1024);
}

std::string Count(long long count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace ferry::cli
