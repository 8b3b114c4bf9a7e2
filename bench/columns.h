// SPDX-License-Identifier: Apache-2.0
// The columns of a report.
#ifndef FERRY_BENCH_COLUMNS_H_
#define FERRY_BENCH_COLUMNS_H_

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/report.h"

namespace ferry::cli {

// One column: its JSON value and its text. Null if the row has no value.
struct BenchColumn {
  const char* key;
  // Null: not shown in the table.
  const char* heading;
  std::function<nlohmann::ordered_json(const BenchRow&)> value;
  std::function<std::string(const BenchRow&)> text;
  // True if the row has a value; a table whose rows have none omits the column. Null: always shown.
  std::function<bool(const BenchRow&)> is_filled;
};

// Returns all columns, in order.
std::vector<BenchColumn> BenchColumns();

}  // namespace ferry::cli

#endif  // FERRY_BENCH_COLUMNS_H_
