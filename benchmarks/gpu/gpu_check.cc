// SPDX-License-Identifier: Apache-2.0
// gpu_check: the program: its flags, its files and what it prints.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/clock.h"
#include "benchmarks/gpu/check_markdown.h"
#include "benchmarks/gpu/check_part.h"
#include "benchmarks/gpu/check_run.h"
#include "benchmarks/gpu/check_sequence.h"
#include "benchmarks/gpu/driver_keeper.h"
#include "benchmarks/gpu/visible_gpus.h"
#include "cli/version.h"

namespace ferry::check {
namespace {

constexpr int kAllWell = 0;
constexpr int kSomethingFailed = 1;
constexpr int kUsage = 2;
constexpr int kNoGpu = 3;

constexpr char kHelp[] =
    "gpu_check: what Ferry does on the GPUs of this machine, and how fast\n"
    "  --json=FILE      everything, for programs (default gpu-check.json)\n"
    "  --report=FILE    everything, for people, in Markdown (default gpu-check.md)\n"
    "  --parts=A,B      only these, and \"machine\"\n"
    "  --tests=FOLDER   where gpu_real_test and its like lie\n"
    "  --commit=TEXT    for the report: what this was built from\n"
    "  --limit=SECONDS  for everything (default 460)\n"
    "  --test-limit=SECONDS  for each test of the part \"tests\" (default 45)\n"
    "  --quick          small sizes and few rounds: whether it runs, not how fast\n"
    "  --verbose        what the parts write, as they do\n"
    "  --list           the parts\n"
    "Exit status: 0 all well, 1 something failed, 2 usage, 3 no GPU.\n";

struct Flags {
  std::string json = "gpu-check.json";
  std::string report = "gpu-check.md";
  std::string commit;
  std::vector<std::string> parts;
  absl::Duration limit = kDefaultLimit;
  Options options;
  bool is_verbose = false;
};

// Fills `flags`; an exit status, or -1: go on.
int ReadFlags(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    int seconds = 0;
    if (flag == "--help" || flag == "-h") {
      std::fputs(kHelp, stdout);
      return kAllWell;
    }
    if (flag == "--list") {
      for (const Part& part : AllParts()) {
        if (!part.is_hidden) std::printf("%-16s %s\n", part.name.c_str(), part.title.c_str());
      }
      return kAllWell;
    }
    if (flag == "--quick") {
      flags.options.is_quick = true;
    } else if (flag == "--verbose") {
      flags.is_verbose = true;
    } else if (absl::ConsumePrefix(&flag, "--json=")) {
      flags.json = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--report=")) {
      flags.report = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--commit=")) {
      flags.commit = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--tests=")) {
      flags.options.tests_folder = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--parts=")) {
      flags.parts = absl::StrSplit(flag, ',');
    } else if (absl::ConsumePrefix(&flag, "--limit=") && absl::SimpleAtoi(flag, &seconds) &&
               seconds > 0) {
      flags.limit = absl::Seconds(seconds);
    } else if (absl::ConsumePrefix(&flag, "--test-limit=") && absl::SimpleAtoi(flag, &seconds) &&
               seconds > 0) {
      flags.options.most_for_test = absl::Seconds(seconds);
    } else {
      std::fprintf(stderr, "gpu_check: unknown argument %s\n%s", argv[i], kHelp);
      return kUsage;
    }
  }
  for (const std::string& name : flags.parts) {
    if (std::none_of(AllParts().begin(), AllParts().end(),
                     [&name](const Part& part) { return part.name == name; })) {
      std::fprintf(stderr, "gpu_check: there is no part %s; --list has them\n", name.c_str());
      return kUsage;
    }
  }
  return -1;
}

bool IsWanted(const Part& part, const Flags& flags) {
  if (part.name == "machine") return true;
  if (flags.parts.empty()) return !part.is_hidden;
  return absl::c_linear_search(flags.parts, part.name);
}

std::string KeptOpen(const DriverKeeper& keeper) {
  if (!keeper.hanging().empty()) {
    return absl::StrCat("no: ", keeper.hanging(), " was not opened in time: its GPU may hang");
  }
  if (keeper.names().empty()) {
    return "no: there are no device files of GPUs, or they cannot be opened";
  }
  return absl::StrJoin(keeper.names(), ", ");
}

// Later processes see only these.
std::string ShowGpus(int count) {
  const std::string visible = FirstVisibleGpus(std::getenv("CUDA_VISIBLE_DEVICES"), count);
  setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), /*overwrite=*/1);
  return visible;
}

// Written atomically: a reader finds either the old file or the new one.
bool Write(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  std::ofstream file(next);
  file << text << "\n";
  file.close();
  if (file.good() && rename(next.c_str(), path.c_str()) == 0) return true;
  std::fprintf(stderr, "gpu_check: cannot write %s\n", path.c_str());
  return false;
}

bool WriteBoth(const Flags& flags, const Json& result) {
  return Write(flags.json, result.dump(1, ' ', false, Json::error_handler_t::replace)) &&
         Write(flags.report, Markdown(result));
}

void PrintPart(const Json& part) {
  std::printf("gpu-check: %-16s %-8s %5.1f s  %s\n", part["name"].get<std::string>().c_str(),
              part["status"].get<std::string>().c_str(), part["seconds"].get<double>(),
              part["reason"].get<std::string>().c_str());
  for (const Json& check : part["checks"]) {
    if (check["status"] != "failed") continue;
    std::printf("gpu-check:   FAILED %s: %s\n", check["name"].get<std::string>().c_str(),
                check["reason"].get<std::string>().c_str());
  }
  std::fflush(stdout);
}

// The exit status of a result that was stored.
int StatusOf(const Json& result) {
  for (const Json& part : result["parts"]) {
    if (part["status"] != "passed" && part["status"] != "skipped") return kSomethingFailed;
  }
  return result["gpu_count"] == 0 ? kNoGpu : kAllWell;
}

int Run(const Flags& flags) {
  Json result = {{"schema", 1},
                 {"ferry", cli::kVersion},
                 {"commit", flags.commit},
                 {"date", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone())},
                 {"mode", flags.options.is_quick ? "quick" : "full"}};
  std::vector<Part> parts;
  absl::c_copy_if(AllParts(), std::back_inserter(parts),
                  [&flags](const Part& part) { return IsWanted(part, flags); });
  std::optional<DriverKeeper> keeper;
  SequenceActions actions;
  actions.open_driver = [&keeper](absl::Duration timeout) {
    return KeptOpen(keeper.emplace("/dev", timeout));
  };
  actions.run_part = [&flags](const Part& part, const Machine& machine, absl::Time deadline) {
    return RunPart(part, flags.options, machine, deadline, flags.is_verbose);
  };
  actions.free_bytes = FreeBytesOfGpus;
  actions.show_gpus = ShowGpus;
  actions.store = [&flags](const Json& stored) { return WriteBoth(flags, stored); };
  actions.print = PrintPart;
  if (!RunSequence(parts, SteadyClock(), flags.limit, actions, result)) return kSomethingFailed;
  if (result["is_double"].get<bool>()) {
    std::printf("gpu-check: NOT A GPU: \"%s\" is a fake driver; none of its times is a figure\n",
                result["device"].get<std::string>().c_str());
  }
  std::printf("gpu-check: %s\n",
              result["gpu_count"] == 0
                  ? absl::StrCat("no GPU: ", result["no_gpu_reason"].get<std::string>()).c_str()
                  : result["verdict"].get<std::string>().c_str());
  return StatusOf(result);
}

}  // namespace
}  // namespace ferry::check

int main(int argc, char** argv) {
  ferry::check::Flags flags;
  const int status = ferry::check::ReadFlags(argc, argv, flags);
  return status >= 0 ? status : ferry::check::Run(flags);
}
