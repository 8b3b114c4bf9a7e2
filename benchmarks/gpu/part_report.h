// SPDX-License-Identifier: Apache-2.0
// The report of a part, before anything is in it.
#ifndef FERRY_BENCHMARKS_GPU_PART_REPORT_H_
#define FERRY_BENCHMARKS_GPU_PART_REPORT_H_

#include "absl/strings/string_view.h"

#include "benchmarks/gpu/check_part.h"

namespace ferry::check {

// {"name", "title", "status", "reason", "seconds", "checks", "figures", "notes", "facts",
//  "last_words"}
Json EmptyReport(const Part& part);

// The report of a part that is not run.
Json SkippedReport(const Part& part, absl::string_view reason);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_PART_REPORT_H_
