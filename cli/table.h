// SPDX-License-Identifier: Apache-2.0
// Tables for terminals.
#ifndef FERRY_CLI_TABLE_H_
#define FERRY_CLI_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ferry::cli {

// Formats columns as wide as their widest cell, separated by two spaces, without trailing spaces.
// Width counts UTF-8 code points. The first row is the header. Rows may be short.
//   indent: prefix of every line.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        absl::string_view indent = "");

// Returns "1.3 KiB"; exact below 1024.
std::string ShortBytes(double bytes);

// Returns "1 node", "2 nodes".
std::string Count(long long count, absl::string_view noun);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TABLE_H_
