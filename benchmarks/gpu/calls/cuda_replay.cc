// SPDX-License-Identifier: Apache-2.0
// cuda_replay: performs the calls of the CUDA driver that libferry_cuda_recorder.so recorded, with
// the fake driver or a real one, and reports what differs (docs/testing_gpu.md, "Replaying").
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/file_limit.h"
#include "base/status_macros.h"
#include "benchmarks/gpu/calls/call_record.h"
#include "benchmarks/gpu/calls/replay_machine.h"
#include "benchmarks/gpu/calls/replay_report.h"
#include "benchmarks/gpu/calls/replay_run.h"

namespace ferry::calls {
namespace {

constexpr char kHelp[] = R"(usage: cuda_replay [--library=FILE] [--timeout=SECONDS] RECORD...

Performs the recorded calls of the CUDA driver in their order, and prints each one that gives
something else than the record says. RECORD is a .calls file, or a folder of them, as gpu-check
--record leaves it: the processes of a folder are replayed together.

  --library=FILE     the driver to call (default: the fake driver of this build)
  --timeout=SECONDS  how long a call may take beyond its recorded time (default: 20)

The fake driver is set up as the machine of the record, as far as the record tells; STRICT_CUDA_...
variables that are set are left as they are. Exit status: 0 nothing differs, 1 something does, 2 the
record cannot be read, or some of its calls cannot be performed.
)";

constexpr uintmax_t kMaxRecordBytes = uintmax_t{512} << 20;
constexpr size_t kMaxRecords = 256;

struct Arguments {
  std::string library;
  absl::Duration patience = absl::Seconds(20);
  std::vector<std::string> paths;
};

// In the build's folder, where this program is as well.
std::string FakeDriver() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / "../../tests/support/strict_cuda/libstrict_cuda.so")
      .lexically_normal()
      .string();
}

absl::StatusOr<Arguments> Read(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    absl::string_view text = argv[i];
    if (absl::ConsumePrefix(&text, "--library=")) {
      arguments.library = std::string(text);
    } else if (absl::ConsumePrefix(&text, "--timeout=")) {
      int seconds = 0;
      if (!absl::SimpleAtoi(text, &seconds) || seconds < 1 || seconds > 3600) {
        return absl::InvalidArgumentError("--timeout is from 1 to 3600 seconds");
      }
      arguments.patience = absl::Seconds(seconds);
    } else if (absl::StartsWith(text, "-")) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", text));
    } else {
      arguments.paths.push_back(std::string(text));
    }
  }
  if (arguments.paths.empty()) return absl::InvalidArgumentError("no RECORD is given");
  if (arguments.library.empty()) arguments.library = FakeDriver();
  return arguments;
}

absl::StatusOr<std::vector<std::string>> Files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == ".calls") files.push_back(entry.path().string());
    }
    if (files.size() == before) {
      return absl::NotFoundError(absl::StrCat("there are no *.calls in ", path));
    }
  }
  if (files.size() > kMaxRecords) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.size(), " records, more than ", kMaxRecords));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<CallRecord> ReadRecord(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (bytes > kMaxRecordBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has more than 512 MiB"));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return CallRecord::Parse(std::filesystem::path(path).filename().string(), text);
}

absl::StatusOr<int> Replay(const Arguments& arguments) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> files, Files(arguments.paths));
  std::vector<CallRecord> records;
  for (const std::string& file : files) {
    FERRY_ASSIGN_OR_RETURN(CallRecord record, ReadRecord(file));
    if (record.is_limited) {
      std::printf("note: %s ends at the recorder's limit, before its process did\n",
                  record.name.c_str());
    }
    records.push_back(std::move(record));
  }
  const ReplayMachine machine = MachineOf(records);
  for (const auto& [name, value] : machine.environment) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
  }
  std::string session = (std::filesystem::temp_directory_path() / "cuda_replay.XXXXXX").string();
  if (mkdtemp(session.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make ", session));
  }
  setenv("STRICT_CUDA_SESSION", session.c_str(), /*overwrite=*/1);
  // Each descriptor that the record exports stays open until its end: any later call may import it.
  RaiseFileLimit();
  ReplayReport report(stdout);
  absl::Status status;
  {
    ReplayRun run(records, machine, {.library = arguments.library, .patience = arguments.patience},
                  report);
    status = run.Run();
  }
  std::error_code ignored;
  std::filesystem::remove_all(session, ignored);
  FERRY_RETURN_IF_ERROR(status);
  return report.Finish(records.size());
}

int Main(int argc, char** argv) {
  if (argc == 2 && (absl::string_view(argv[1]) == "--help" || absl::string_view(argv[1]) == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const absl::StatusOr<Arguments> arguments = Read(argc, argv);
  const absl::StatusOr<int> status =
      arguments.ok() ? Replay(*arguments) : absl::StatusOr<int>(arguments.status());
  if (status.ok()) return *status;
  std::fprintf(stderr, "cuda_replay: %s\n", std::string(status.status().message()).c_str());
  return 2;
}

}  // namespace
}  // namespace ferry::calls

int main(int argc, char** argv) { return ferry::calls::Main(argc, argv); }
