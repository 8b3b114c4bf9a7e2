// SPDX-License-Identifier: Apache-2.0
// The test programs that run on any GPU: what each of them says.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/check_part.h"
#include "benchmarks/gpu/check_program.h"

namespace ferry::check {
namespace {

// In the order in which they run; scripts/package packs the same.
constexpr const char* kPrograms[] = {"gpu_real_test", "gpu_cuda_test", "gpu_ipc_test",
                                     "gpu_exchange_test", "nccl_exchange_test"};
// Those that run on the double by themselves leave it out where this is set.
constexpr char kOnRealGpu[] = "FERRY_TEST_REAL_GPU";
constexpr absl::Duration kMostForOne = absl::Seconds(40);
constexpr size_t kKept = 3000;

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

void TellOfTest(Reporter& report, const std::string& program, const Json& suite, const Json& test) {
  const std::string name =
      absl::StrCat(program, ": ", suite.value("name", ""), ".", test.value("name", ""));
  if (test.value("result", "") == "SKIPPED") {
    std::string reason = "it says no reason";
    if (test.contains("skipped") && !test["skipped"].empty()) {
      reason = test["skipped"][0].value("message", reason);
    }
    return report.SkipCheck(name, reason);
  }
  if (test.value("status", "") == "NOTRUN") return;
  absl::Status status;
  if (test.contains("failures")) {
    status = absl::InternalError(test["failures"][0].value("failure", ""));
  }
  report.Check(name, status);
}

absl::Status RunOne(PartContext& context, const std::string& name, const std::string& path,
                    const std::string& results) {
  const absl::Time deadline =
      std::min(context.deadline - absl::Seconds(1), SteadyClock().Now() + kMostForOne);
  FERRY_ASSIGN_OR_RETURN(
      const ProgramResult ended,
      RunProgram({path, absl::StrCat("--gtest_output=json:", results)}, deadline));
  std::ifstream file(results);
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    const std::string& output = ended.output;
    return absl::InternalError(
        absl::StrCat("it died, with wait status ", ended.wait_status, ": ",
                     output.substr(output.size() - std::min(output.size(), kKept))));
  }
  for (const Json& suite : json["testsuites"]) {
    for (const Json& test : suite["testsuite"]) TellOfTest(context.report, name, suite, test);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTestsPart(PartContext& context) {
  if (context.options.tests_folder.empty()) {
    context.report.SkipPart("no folder of test programs was named (--tests)");
    return absl::OkStatus();
  }
  setenv(kOnRealGpu, "1", 1);
  std::string folder = (std::filesystem::temp_directory_path() / "ferry_gpu_check_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  for (const char* const name : kPrograms) {
    const std::string path = Find(context.options.tests_folder, name);
    if (path.empty()) {
      context.report.SkipCheck(name,
                               absl::StrCat("there is none in ", context.options.tests_folder));
      continue;
    }
    const absl::Status status =
        RunOne(context, name, path, absl::StrCat(folder, "/", name, ".json"));
    if (!status.ok()) context.report.Check(name, status);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return absl::OkStatus();
}

}  // namespace ferry::check
