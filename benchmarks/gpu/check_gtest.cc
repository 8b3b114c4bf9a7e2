// SPDX-License-Identifier: Apache-2.0
// Lines of GoogleTest's output.
#include "benchmarks/gpu/check_gtest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ferry::check {
namespace {

constexpr absl::string_view kRun = "[ RUN      ] ";
constexpr absl::string_view kOk = "[       OK ] ";
constexpr absl::string_view kFailed = "[  FAILED  ] ";
constexpr absl::string_view kSkipped = "[  SKIPPED ] ";
constexpr absl::string_view kRunning = "[==========] Running ";
constexpr absl::string_view kSeen = "seen: ";
// A line that reports where a check failed, or where the test was skipped.
constexpr absl::string_view kFailureLine = ": Failure";
constexpr absl::string_view kSkippedLine = ": Skipped";
// The output of FERRY_CHECK, mostly in a child of the test.
constexpr absl::string_view kCheckFailed = ": FERRY_CHECK failed";
// The limit of a test's recorded output, and of a reason.
constexpr size_t kMaxOutputBytes = 64 << 10;
constexpr size_t kMaxReason = 1500;

std::string CutOutput(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.size() <= kMaxReason) return std::string(text);
  return absl::StrCat(text.substr(0, kMaxReason), " ...");
}

// From the first line that reports a failed check, if there is one: earlier output is noise. Else
// the end, where a program that dies reports why.
std::string FailureIn(absl::string_view words) {
  const size_t at =
      std::min(words.find(absl::StrCat(kFailureLine, "\n")), words.find(kCheckFailed));
  if (at != absl::string_view::npos) {
    const size_t line = words.rfind('\n', at);
    return CutOutput(words.substr(line == absl::string_view::npos ? 0 : line + 1));
  }
  words = absl::StripAsciiWhitespace(words);
  if (words.size() > kMaxReason) words.remove_prefix(words.size() - kMaxReason);
  return CutOutput(words);
}

// "... (12 ms)"; -1 without.
int MillisecondsIn(absl::string_view line) {
  int milliseconds = -1;
  const size_t at = line.rfind('(');
  if (at == absl::string_view::npos || !absl::ConsumeSuffix(&line, " ms)")) return -1;
  return absl::SimpleAtoi(line.substr(at + 1), &milliseconds) ? milliseconds : -1;
}

std::string SkipReasonIn(absl::string_view words) {
  const size_t at = words.find(absl::StrCat(kSkippedLine, "\n"));
  if (at == absl::string_view::npos) return "it says no reason";
  return CutOutput(words.substr(at + kSkippedLine.size() + 1));
}

}  // namespace

void GtestReader::Feed(absl::string_view output) {
  while (!output.empty()) {
    const size_t end = output.find('\n');
    absl::StrAppend(&partial_, output.substr(0, end));
    if (end == absl::string_view::npos) return;
    output.remove_prefix(end + 1);
    TakeLine(std::exchange(partial_, std::string()));
  }
}

void GtestReader::End(absl::string_view why) {
  if (!partial_.empty()) TakeLine(std::exchange(partial_, std::string()));
  if (running_.empty()) return;
  const std::string failure = FailureIn(words_);
  Tell(TestOutcome::Status::kFailed, -1, absl::StrCat(why, failure.empty() ? "" : ": ", failure));
}

void GtestReader::TakeLine(absl::string_view line) {
  if (running_.empty()) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, kRun)) {
      running_ = std::string(rest);
      words_.clear();
      began_(running_);
      return;
    }
    if (absl::ConsumePrefix(&rest, kRunning)) {
      const absl::string_view count = rest.substr(0, rest.find(' '));
      if (!absl::SimpleAtoi(count, &wanted_)) wanted_ = -1;
    }
    if (rest_.size() < kMaxReason) absl::StrAppend(&rest_, line, "\n");
    return;
  }
  // A child of the test may have left a line without its end before it.
  for (const auto& [mark, status] : {std::pair(kOk, TestOutcome::Status::kPassed),
                                     std::pair(kFailed, TestOutcome::Status::kFailed),
                                     std::pair(kSkipped, TestOutcome::Status::kSkipped)}) {
    const size_t at = line.find(absl::StrCat(mark, running_));
    if (at == absl::string_view::npos) continue;
    absl::StrAppend(&words_, line.substr(0, at));
    return Tell(status, MillisecondsIn(line),
                status == TestOutcome::Status::kPassed    ? std::string()
                : status == TestOutcome::Status::kSkipped ? SkipReasonIn(words_)
                                                          : FailureIn(words_));
  }
  absl::StrAppend(&words_, line, "\n");
  if (words_.size() > kMaxOutputBytes)
    words_.erase(kMaxOutputBytes / 2, words_.size() - kMaxOutputBytes);
}

void GtestReader::Tell(TestOutcome::Status status, int milliseconds, std::string reason) {
  TestOutcome outcome{
      std::exchange(running_, std::string()), status, milliseconds, std::move(reason), {}};
  for (absl::string_view line : absl::StrSplit(words_, '\n')) {
    if (absl::ConsumePrefix(&line, kSeen)) outcome.seen.emplace_back(line);
  }
  ended_(std::move(outcome));
}

}  // namespace ferry::check
