// SPDX-License-Identifier: Apache-2.0
// The test programs that run on any GPU, and the result of each of their tests. A test that crashes
// or hangs fails alone: the program is started again for those that come after it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "benchmarks/gpu/check_gtest.h"
#include "benchmarks/gpu/check_part.h"
#include "benchmarks/gpu/check_program.h"

namespace ferry::check {
namespace {

// In the order in which they run; scripts/package packs the same.
constexpr const char* kPrograms[] = {"gpu_real_test", "gpu_cuda_test", "gpu_ipc_test",
                                     "gpu_exchange_test", "nccl_exchange_test"};
// Tests that run with the fake driver by default do not where this is set.
constexpr char kOnRealGpu[] = "FERRY_TEST_REAL_GPU";
// The rest of the part's time, for reporting how it ended.
constexpr absl::Duration kReserve = absl::Seconds(2);

// The program, in the folder or below it: in a build, each test lies beside its own.
std::string Find(const std::string& folder, const std::string& name) {
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    if (entry.path().filename() == name && access(entry.path().c_str(), X_OK) == 0 &&
        entry.is_regular_file()) {
      return entry.path().string();
    }
  }
  return "";
}

std::string EndText(int wait_status) {
  return WIFSIGNALED(wait_status) ? absl::StrCat("it died of signal ", WTERMSIG(wait_status))
                                  : absl::StrCat("it ended with status ", WEXITSTATUS(wait_status));
}

// One of the programs, until each of its tests has been run once or the part's time is over.
class TestProgram final {
 public:
  TestProgram(PartContext& context, std::string name, std::string path)
      : context_(context),
        name_(std::move(name)),
        path_(std::move(path)),
        give_up_(context.deadline - kReserve) {}

  void Run() {
    while (SteadyClock().Now() < give_up_) {
      const size_t begun = begun_.size();
      if (RunOnce() || begun_.size() == begun) break;
    }
    if (SteadyClock().Now() >= give_up_) {
      const std::string left = total_ < 0 ? "its tests"
                                          : absl::StrCat(total_ - static_cast<int>(ended_),
                                                         " of its ", total_, " tests");
      context_.report.SkipCheck(absl::StrCat(name_, ": the rest"),
                                absl::StrCat("no time was left for ", left));
    }
  }

 private:
  // Runs those that have not begun. True: that was all of them.
  bool RunOnce() {
    GtestReader reader(
        [this](const std::string& test) {
          begun_.push_back(test);
          since_ = SteadyClock().Now();
        },
        [this](TestOutcome outcome) {
          ++ended_;
          Tell(std::move(outcome));
        });
    std::vector<std::string> arguments = {path_, "--gtest_color=no", "--gtest_print_time=1"};
    if (!begun_.empty()) {
      arguments.push_back(absl::StrCat("--gtest_filter=-", absl::StrJoin(begun_, ":")));
    }
    const absl::Duration most = context_.options.most_for_test;
    since_ = SteadyClock().Now();
    const absl::StatusOr<int> ended = WatchProgram(
        arguments, [&](absl::string_view output) { reader.Feed(output); },
        [&] { return std::min(give_up_, since_ + most); });
    if (total_ < 0) total_ = reader.wanted();
    const std::string running = reader.running();
    if (absl::IsDeadlineExceeded(ended.status()) && SteadyClock().Now() >= give_up_) {
      // That it has not ended yet is no failure.
      return false;
    }
    reader.End(ended.ok() ? EndText(*ended)
                          : absl::StrCat("it did not end within ", absl::FormatDuration(most)));
    if (!running.empty()) return false;
    // Between its tests, or before the first.
    const bool is_usual = ended.ok() && WIFEXITED(*ended) && WEXITSTATUS(*ended) <= 1;
    if (!is_usual || reader.wanted() < 0) {
      context_.report.Check(
          name_, absl::InternalError(absl::StrCat(
                     ended.ok() ? EndText(*ended) : std::string(ended.status().message()),
                     " outside of its tests: ", reader.rest())));
    }
    return true;
  }

  void Tell(TestOutcome outcome) {
    const std::string name = absl::StrCat(name_, ": ", outcome.name);
    if (outcome.status == TestOutcome::Status::kSkipped) {
      return context_.report.SkipCheck(name, outcome.reason);
    }
    Json details = Json::object();
    if (outcome.milliseconds >= 0) details["ms"] = outcome.milliseconds;
    if (!outcome.seen.empty()) details["seen"] = outcome.seen;
    context_.report.Check(name,
                          outcome.status == TestOutcome::Status::kFailed
                              ? absl::InternalError(outcome.reason)
                              : absl::OkStatus(),
                          std::move(details));
  }

  PartContext& context_;
  const std::string name_;
  const std::string path_;
  const absl::Time give_up_;
  // Tests that have run, with any result.
  std::vector<std::string> begun_;
  size_t ended_ = 0;
  int total_ = -1;
  // When the one that runs began.
  absl::Time since_;
};

}  // namespace

absl::Status RunTestsPart(PartContext& context) {
  if (context.options.tests_folder.empty()) {
    context.report.SkipPart("no folder of test programs was named (--tests)");
    return absl::OkStatus();
  }
  setenv(kOnRealGpu, "1", 1);
  for (const char* const name : kPrograms) {
    const std::string path = Find(context.options.tests_folder, name);
    if (path.empty()) {
      context.report.SkipCheck(name,
                               absl::StrCat("there is none in ", context.options.tests_folder));
      continue;
    }
    TestProgram(context, name, path).Run();
  }
  return absl::OkStatus();
}

}  // namespace ferry::check
