// SPDX-License-Identifier: Apache-2.0
// The order, the time limit and the summary of a run.
#include "benchmarks/gpu/check_sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "benchmarks/gpu/part_report.h"

namespace ferry::check {
namespace {

// Time after the last part: for comparing memory, and writing.
constexpr absl::Duration kEnding = absl::Seconds(8);
// A part is not begun for less.
constexpr absl::Duration kLeastForPart = absl::Seconds(2);
// Parts that come and go may leave the driver's own pages behind, and others use the machine too.
constexpr size_t kNoise = size_t{64} << 20;
// How long the initialisation of all GPUs may take.
constexpr absl::Duration kDriverTimeout = absl::Seconds(40);
// More GPUs tell nothing new, and each process would initialise all of them.
constexpr int kGpusForParts = 2;
// The driver reclaims the memory of a killed process a moment after its end.
constexpr absl::Duration kMemoryTimeout = absl::Seconds(3);

constexpr char kVerdictNoGpu[] = "no GPU";
constexpr char kVerdictPassed[] = "all parts passed or were skipped";

bool IsMachine(const Part& part) { return part.name == "machine"; }

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
    if (part["status"] == "killed" || part["status"] == "crashed") {
      machine.no_gpu_reason =
          absl::StrCat("the driver has not described its GPUs: the part machine ",
                       part["status"].get<std::string>(), ": ", machine.no_gpu_reason);
    }
  }
  const std::string fake_driver = facts.value("double", "");
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
  result["is_double"] = !fake_driver.empty();
  result["double_library"] = fake_driver;
  result["versions"] = facts.value("versions", Json::object());
  return machine;
}

// Adds the device to each figure, and whether its goal is met: unknown with a fake driver.
void Stamp(const Json& result, Json& part) {
  const bool is_fake_driver = result["is_double"].get<bool>();
  for (Json& figure : part["figures"]) {
    figure["device"] = result["device"];
    figure["is_double"] = is_fake_driver;
    figure["meets_goal"] = nullptr;
    if (is_fake_driver || result["mode"] == "quick") continue;
    if (figure["goal"].is_null() || figure["ratio"].is_null()) continue;
    figure["meets_goal"] = figure["ratio"].get<double>() >= figure["goal"].get<double>();
  }
}

// Memory of ended processes of the part must be free again, or soon. Returns the free memory.
//   uses_mps: the server, which outlives them, keeps memory of its own.
std::vector<size_t> CompareMemory(const Clock& clock, const SequenceActions& actions,
                                  const std::vector<size_t>& before, bool uses_mps,
                                  absl::Time deadline, Json& part) {
  const absl::Time give_up = std::min(deadline, clock.Now() + kMemoryTimeout);
  std::vector<size_t> after = actions.free_bytes(deadline);
  const auto is_less = [&before, &after](size_t i) { return after[i] + kNoise < before[i]; };
  while (before.size() == after.size() && clock.Now() < give_up) {
    bool is_short = false;
    for (size_t i = 0; i < before.size(); ++i) is_short |= is_less(i);
    if (!is_short) break;
    after = actions.free_bytes(deadline);
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

// Counts checks and goals, and sums them up in one line.
void Conclude(const Machine& machine, Json& result) {
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
                      : machine.gpu_count == 0 ? kVerdictNoGpu
                                               : kVerdictPassed;
}

// The results before `next`, in case that it does not end.
bool StoreUnfinished(const SequenceActions& actions, const Machine& machine, absl::string_view next,
                     absl::Duration taken, Json result) {
  Conclude(machine, result);
  result["verdict"] = absl::StrCat("not finished: it had come to the part ", next);
  result["seconds"] = absl::ToDoubleSeconds(taken);
  return actions.store(result);
}

}  // namespace

bool RunSequence(const std::vector<Part>& parts, const Clock& clock, absl::Duration limit,
                 const SequenceActions& actions, Json& result) {
  const absl::Time began = clock.Now();
  const absl::Time deadline = began + limit;
  const auto has_time = [&clock, deadline] { return clock.Now() + kLeastForPart <= deadline; };
  result["gpu_count"] = 0;
  // Until the first part has reported it.
  result["no_gpu_reason"] = "the part machine has not ended";
  result["device"] = "none";
  result["is_double"] = false;
  result["versions"] = Json::object();
  result["parts"] = Json::array();
  result["driver_kept_open"] = "";
  Machine machine;
  // An unwritable folder is reported before the time is spent.
  if (!StoreUnfinished(actions, machine, "of opening the device files", absl::ZeroDuration(),
                       result)) {
    return false;
  }
  // Before any part: they are processes of their own, one after the other.
  result["driver_kept_open"] = actions.open_driver(std::min(kDriverTimeout, limit / 4));
  // After the part before.
  std::vector<size_t> free_bytes;
  for (const Part& part : parts) {
    if (!StoreUnfinished(actions, machine, part.name, clock.Now() - began, result)) return false;
    const bool can_run = !part.needs_gpu || machine.gpu_count > 0;
    if (can_run && part.needs_gpu && free_bytes.empty() && has_time()) {
      free_bytes = actions.free_bytes(deadline);
    }
    Json one;
    if (!can_run) {
      one = SkippedReport(part, absl::StrCat("no GPU: ", machine.no_gpu_reason));
    } else if (!IsMachine(part) && !has_time()) {
      one = SkippedReport(part, "no time was left for it");
    } else {
      const absl::Time own = clock.Now() + part.limit;
      one = actions.run_part(part, machine, IsMachine(part) ? own : std::min(own, deadline));
      if (part.needs_gpu) {
        free_bytes = CompareMemory(clock, actions, free_bytes, result.value("mps", false),
                                   deadline + kEnding, one);
      }
    }
    if (IsMachine(part)) {
      machine = TakeMachine(one, result);
      if (machine.gpu_count > kGpusForParts) {
        // The first part has described all.
        machine.gpu_count = kGpusForParts;
        result["gpus_of_parts"] = actions.show_gpus(kGpusForParts);
      }
    }
    Stamp(result, one);
    // The reason for having no GPU is printed once.
    if (!part.needs_gpu || machine.gpu_count > 0) actions.print(one);
    result["parts"].push_back(std::move(one));
  }
  Conclude(machine, result);
  result["seconds"] = absl::ToDoubleSeconds(clock.Now() - began);
  return actions.store(result);
}

}  // namespace ferry::check
