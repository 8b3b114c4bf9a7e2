// SPDX-License-Identifier: Apache-2.0
// GtestReader: the output of a test program while it runs, one test at a time.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_GTEST_H_
#define FERRY_BENCHMARKS_GPU_CHECK_GTEST_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ferry::check {

struct TestOutcome {
  enum class Status { kPassed, kFailed, kSkipped };

  // "GpuRing.BoundedRing_FailsNoTransfer".
  std::string name;
  Status status = Status::kPassed;
  // As printed by the program; -1 if it did not get that far.
  int milliseconds = -1;
  // Why it failed or was skipped; of a long one, the beginning. Empty if it passed.
  std::string reason;
  // Lines that begin with "seen: ", without that: results that a test reports and does not judge.
  std::vector<std::string> seen;
};

// Parses GoogleTest's output as it arrives: results so far are kept when the program is killed,
// unlike the files that it writes at its end. Not thread-safe.
class GtestReader final {
 public:
  using Callback = std::function<void(TestOutcome)>;

  // `began` is called with the name of each test, `ended` with its result.
  GtestReader(std::function<void(const std::string&)> began, Callback ended)
      : began_(std::move(began)), ended_(std::move(ended)) {}

  // Any piece of the output, lines in parts too.
  void Feed(absl::string_view output);
  // The program has ended: a running test failed, and `why` is the beginning of its reason.
  void End(absl::string_view why);

  // The running test; empty: none.
  const std::string& running() const { return running_; }
  // How many tests the program will run; -1: not printed yet.
  int wanted() const { return wanted_; }
  // Its output outside of tests, such as why it cannot begin.
  const std::string& rest() const { return rest_; }

 private:
  void TakeLine(absl::string_view line);
  void Tell(TestOutcome::Status status, int milliseconds, std::string reason);

  const std::function<void(const std::string&)> began_;
  const Callback ended_;
  // The beginning of a line.
  std::string partial_;
  std::string running_;
  // The output of the running test.
  std::string words_;
  std::string rest_;
  int wanted_ = -1;
};

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_GTEST_H_
