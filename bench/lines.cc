// SPDX-License-Identifier: Apache-2.0
// Returns recorded lines in order.
#include "bench/lines.h"

#include "absl/strings/str_cat.h"

namespace ferry::cli {

absl::StatusOr<std::vector<BenchLines::Json>> KeptBenchLines::Expect(const std::string& event) {
  if (lines_.empty()) {
    return absl::InternalError(absl::StrCat("no result received for \"", event, "\""));
  }
  std::vector<Json> lines = std::move(lines_.front());
  lines_.pop_front();
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    if (lines[rank].is_object() && lines[rank].value("event", "") == event) continue;
    return absl::InternalError(
        absl::StrCat("process ", rank, " told ",
                     lines[rank].dump(-1, ' ', false, Json::error_handler_t::replace),
                     " instead of \"", event, "\""));
  }
  return lines;
}

}  // namespace ferry::cli
