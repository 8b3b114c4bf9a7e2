// SPDX-License-Identifier: Apache-2.0
// ReplayReport: the findings of a replay, printed as they come.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_REPLAY_REPORT_H_
#define FERRY_BENCHMARKS_GPU_CALLS_REPLAY_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

#include "benchmarks/gpu/calls/call_record.h"

namespace ferry::calls {

// Not thread-safe.
class ReplayReport final {
 public:
  explicit ReplayReport(std::FILE* out) : out_(out) {}

  // The first few of one kind (the same function and argument) are printed.
  void Difference(const CallRecord& record, const RecordedCall& call, absl::string_view text);
  void Skipped(const CallRecord& record, const RecordedCall& call, absl::string_view why,
               bool is_error);
  // A difference of a whole process: always printed.
  void Trouble(absl::string_view text);
  void Played() { ++played_; }

  // Prints the sums. Returns the exit status: 0 if all calls were performed and gave what the
  // record has; 1 if there are differences; else 2: some could not be performed.
  int Finish(size_t processes);

 private:
  void Print(absl::string_view kind, std::string line);

  std::FILE* const out_;
  std::map<std::string, int64_t> kinds_;
  int64_t played_ = 0;
  int64_t differences_ = 0;
  int64_t errors_ = 0;
  int64_t skipped_ = 0;
};

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_REPLAY_REPORT_H_
