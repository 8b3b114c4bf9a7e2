// SPDX-License-Identifier: Apache-2.0
// The figures of a row, by their names.
#ifndef FERRY_BENCH_COLUMNS_H_
#define FERRY_BENCH_COLUMNS_H_

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/report.h"

namespace ferry::cli {

// One figure of a row: once for programs, once for people. Null is a figure that there is not.
struct BenchColumn {
  const char* key;
  // Null: not in the table.
  const char* heading;
  std::function<nlohmann::ordered_json(const BenchRow&)> value;
  std::function<std::string(const BenchRow&)> text;
  // Whether the row has something to say there; a table in which none has is without the column.
  // Null: always.
  std::function<bool(const BenchRow&)> is_filled;
};

// All there are, in their order.
std::vector<BenchColumn> BenchColumns();

}  // namespace ferry::cli

#endif  // FERRY_BENCH_COLUMNS_H_
