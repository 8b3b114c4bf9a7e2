// SPDX-License-Identifier: Apache-2.0
// gpu_check: runs all parts, one after the other, and writes their results.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
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
#include "benchmarks/gpu/driver_keeper.h"
#include "benchmarks/gpu/visible_gpus.h"
#include "cli/version.h"

namespace ferry::check {
namespace {

constexpr int kAllWell = 0;
constexpr int kSomethingFailed = 1;
constexpr int kUsage = 2;
constexpr int kNoGpu = 3;

// All of it. The wrapper kills this program a little later.
constexpr absl::Duration kMostForAll = absl::Seconds(460);
// Time after the last part: for checking memory, and writing.
constexpr absl::Duration kEnding = absl::Seconds(8);
// A part is not begun for less.
constexpr absl::Duration kLeastForPart = absl::Seconds(2);
// Parts that come and go may leave the driver's own pages behind, and others use the machine too.
constexpr size_t kNoise = size_t{64} << 20;
// How long the initialisation of all GPUs may take.
constexpr absl::Duration kKeeperTimeout = absl::Seconds(40);
// More GPUs tell nothing new, and each process would initialise all of them.
constexpr int kGpusForParts = 2;
// The driver reclaims the memory of a killed process a moment after its end.
constexpr absl::Duration kMemoryTimeout = absl::Seconds(3);

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
  absl::Duration limit = kMostForAll;
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

// The facts of the first part go to the head of the result.
Machine TakeMachine(const Json& part, Json& result) {
  Machine machine;
  const Json& facts = part["facts"];
  const Json gpus = facts.value("gpus", Json::array());
  machine.gpu_count = static_cast<int>(gpus.size());
  bool uses_mps = false;
  for (const Json& gpu : gpus) {
    const auto bytes = gpu["memory_bytes"].get<size_t>();
    if (machine.gpu_bytes == 0 || bytes < machine.gpu_bytes) machine.gpu_bytes = bytes;
    uses_mps |= gpu.value("mps", false);
  }
  if (machine.gpu_count == 0) {
    machine.no_gpu_reason = facts.value("no_gpu_reason", "");
    if (machine.no_gpu_reason.empty()) machine.no_gpu_reason = part["reason"].get<std::string>();
  }
  const std::string the_double = facts.value("double", "");
  result["gpu_count"] = machine.gpu_count;
  result["no_gpu_reason"] = machine.no_gpu_reason;
  result["device"] = machine.gpu_count > 0 ? gpus[0]["name"] : Json("none");
  result["mps"] = uses_mps;
  if (machine.gpu_count > 0) {
    result["gpu_sharing"] =
        uses_mps ? "Processes share a GPU by MPS: their work runs side by side."
                 : "Without MPS a GPU runs the work of one process at a time: two processes on one "
                   "GPU take turns. Figures of two processes on one GPU, and their floors, contain "
                   "the waits for a turn.";
  }
  result["is_double"] = !the_double.empty();
  result["double_library"] = the_double;
  result["versions"] = facts.value("versions", Json::object());
  return machine;
}

// The path of each figure, and whether it is the expected one: with a fake driver nothing is
// judged.
void Stamp(const Json& result, Json& part) {
  const bool is_double = result["is_double"].get<bool>();
  for (Json& figure : part["figures"]) {
    figure["device"] = result["device"];
    figure["is_double"] = is_double;
    figure["meets_goal"] = nullptr;
    if (is_double || result["mode"] == "quick") continue;
    if (figure["goal"].is_null() || figure["ratio"].is_null()) continue;
    figure["meets_goal"] = figure["ratio"].get<double>() >= figure["goal"].get<double>();
  }
}

// Memory of ended processes of the part must be free again, or soon. Returns the free memory.
//   uses_mps: the server, which outlives them, keeps memory of its own.
std::vector<size_t> CompareMemory(const std::vector<size_t>& before, bool uses_mps,
                                  absl::Time deadline, Json& part) {
  const absl::Time give_up = std::min(deadline, SteadyClock().Now() + kMemoryTimeout);
  std::vector<size_t> after = FreeBytesOfGpus(deadline);
  const auto is_less = [&before, &after](size_t i) { return after[i] + kNoise < before[i]; };
  while (before.size() == after.size() && SteadyClock().Now() < give_up) {
    bool is_short = false;
    for (size_t i = 0; i < before.size(); ++i) is_short |= is_less(i);
    if (!is_short) break;
    after = FreeBytesOfGpus(deadline);
  }
  part["free_bytes_before"] = before;
  part["free_bytes_after"] = after;
  if (before.size() != after.size()) {
    part["notes"].push_back("the free memory could not be asked for before or after this part");
    return after;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    if (!is_less(i)) continue;
    part["checks"].push_back(
        {{"name", absl::StrCat("memory of gpu:", i, " after all processes have ended")},
         {"status", uses_mps ? "skipped" : "failed"},
         {"reason", absl::StrCat(before[i] - after[i], " bytes are not there any more",
                                 uses_mps ? "; the MPS server keeps memory of its own" : "")}});
    if (!uses_mps && part["status"] == "passed") part["status"] = "failed";
  }
  return after;
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

// The parts see two GPUs at most; the first one has described all.
void ShowFewGpus(Machine& machine, Json& result) {
  if (machine.gpu_count <= kGpusForParts) return;
  const std::string visible = FirstVisibleGpus(std::getenv("CUDA_VISIBLE_DEVICES"), kGpusForParts);
  setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), /*overwrite=*/1);
  machine.gpu_count = kGpusForParts;
  result["gpus_of_parts"] = visible;
}

// Counts, and one word.
int Conclude(const Machine& machine, Json& result) {
  Json counts = {{"passed", 0}, {"failed", 0}, {"skipped", 0}};
  Json goals = {{"met", 0}, {"missed", 0}, {"not_judged", 0}};
  std::vector<std::string> bad_parts;
  for (const Json& part : result["parts"]) {
    const std::string status = part["status"].get<std::string>();
    if (status != "passed" && status != "skipped") {
      bad_parts.push_back(absl::StrCat(part["name"].get<std::string>(), " ", status));
    }
    for (const Json& check : part["checks"]) {
      Json& count = counts[check["status"].get<std::string>()];
      count = count.get<int>() + 1;
    }
    for (const Json& figure : part["figures"]) {
      if (figure["goal"].is_null()) continue;
      const Json& meets = figure["meets_goal"];
      Json& count = goals[meets.is_null() ? "not_judged" : meets.get<bool>() ? "met" : "missed"];
      count = count.get<int>() + 1;
    }
  }
  result["checks"] = counts;
  result["goals"] = goals;
  result["verdict"] = !bad_parts.empty()       ? absl::StrJoin(bad_parts, ", ")
                      : machine.gpu_count == 0 ? "no GPU"
                                               : "all parts passed or were skipped";
  if (!bad_parts.empty()) return kSomethingFailed;
  return machine.gpu_count == 0 ? kNoGpu : kAllWell;
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

// The results before `next` is run, in case that does not end.
bool WriteUnfinished(const Flags& flags, const Machine& machine, absl::string_view next,
                     absl::Duration taken, Json result) {
  Conclude(machine, result);
  result["verdict"] = absl::StrCat("not finished: it had come to the part ", next);
  result["seconds"] = absl::ToDoubleSeconds(taken);
  return WriteBoth(flags, result);
}

void TellOfPart(const Json& part) {
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

int Run(const Flags& flags) {
  const absl::Time began = SteadyClock().Now();
  const absl::Time deadline = began + flags.limit;
  const absl::Time end = deadline + kEnding;
  Json result = {{"schema", 1},
                 {"ferry", cli::kVersion},
                 {"commit", flags.commit},
                 {"date", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone())},
                 {"mode", flags.options.is_quick ? "quick" : "full"},
                 // Until the first part has reported it.
                 {"gpu_count", 0},
                 {"no_gpu_reason", "nobody has looked yet"},
                 {"device", "none"},
                 {"is_double", false},
                 {"versions", Json::object()},
                 {"parts", Json::array()}};
  result["driver_kept_open"] = "";
  Machine machine;
  // An unwritable folder must be reported before the time is spent.
  if (!WriteUnfinished(flags, machine, "of opening the device files", absl::ZeroDuration(),
                       result)) {
    return kSomethingFailed;
  }
  // Before any part: they are processes of their own, one after the other.
  const DriverKeeper keeper("/dev", std::min(kKeeperTimeout, flags.limit / 4));
  result["driver_kept_open"] = KeptOpen(keeper);
  // After the part before.
  std::vector<size_t> free_bytes;
  for (const Part& part : AllParts()) {
    if (!IsWanted(part, flags)) continue;
    if (!WriteUnfinished(flags, machine, part.name, SteadyClock().Now() - began, result)) {
      return kSomethingFailed;
    }
    Json one;
    if (part.needs_gpu && machine.gpu_count == 0) {
      one = SkippedPart(part, absl::StrCat("no GPU: ", machine.no_gpu_reason));
    } else if (part.needs_gpu && SteadyClock().Now() + kLeastForPart > deadline) {
      one = SkippedPart(part, "no time was left for it");
    } else {
      if (part.needs_gpu && free_bytes.empty()) free_bytes = FreeBytesOfGpus(end);
      // The machine is always reported: that part has a limit of its own.
      one = RunPart(part, flags.options, machine,
                    part.name == "machine" ? absl::InfiniteFuture() : deadline, flags.is_verbose);
      if (part.needs_gpu)
        free_bytes = CompareMemory(free_bytes, result.value("mps", false), end, one);
    }
    if (part.name == "machine") {
      machine = TakeMachine(one, result);
      ShowFewGpus(machine, result);
    }
    Stamp(result, one);
    // The reason for having no GPU is reported once.
    if (!part.needs_gpu || machine.gpu_count > 0) TellOfPart(one);
    result["parts"].push_back(std::move(one));
  }
  const int status = Conclude(machine, result);
  result["seconds"] = absl::ToDoubleSeconds(SteadyClock().Now() - began);
  if (result["is_double"].get<bool>()) {
    std::printf("gpu-check: NOT A GPU: \"%s\" is a double; none of its times is a figure\n",
                result["device"].get<std::string>().c_str());
  }
  std::printf("gpu-check: %s\n", machine.gpu_count == 0
                                     ? absl::StrCat("no GPU: ", machine.no_gpu_reason).c_str()
                                     : result["verdict"].get<std::string>().c_str());
  return WriteBoth(flags, result) ? status : kSomethingFailed;
}

}  // namespace
}  // namespace ferry::check

int main(int argc, char** argv) {
  ferry::check::Flags flags;
  const int status = ferry::check::ReadFlags(argc, argv, flags);
  return status >= 0 ? status : ferry::check::Run(flags);
}
