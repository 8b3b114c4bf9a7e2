// SPDX-License-Identifier: Apache-2.0
// ferry run: starts the processes of a job on this machine, with a coordinator when it needs one.
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cli/hosted_coordinator.h"
#include "cli/verb.h"
#include "runtime/launcher.h"
#include "runtime/node.h"

namespace ferry::cli {
namespace {

// The machine that runs the coordinator waits this long for the processes of the others.
constexpr absl::Duration kOthersPatience = absl::Seconds(10);

struct RunFlags {
  std::string coordinator;
  std::optional<int> machine_index;
  bool no_prefix = false;
  bool no_graphs = false;
  std::vector<std::string> after_dashes;
  LaunchOptions launch;
};

// What follows the flags, with or without "--" before it. A "--" further on is the command's own.
absl::Status TakeCommand(const CLI::App& verb, const std::vector<std::string>& after_dashes,
                         LaunchOptions& launch) {
  launch.command = verb.remaining();
  if (!launch.command.empty() && absl::StartsWith(launch.command[0], "-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("run: unknown option ", launch.command[0], "; the command goes after --"));
  }
  const bool has_begun = !launch.command.empty();
  launch.command.insert(launch.command.end(), after_dashes.begin(), after_dashes.end());
  if (!has_begun && !after_dashes.empty()) launch.command.erase(launch.command.begin());
  if (!launch.command.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("run: say what to run: ferry run --nproc=2 -- CMD...");
}

// Fills in the coordinator, and starts one where this is the machine for it.
absl::StatusOr<std::unique_ptr<HostedCoordinator>> PrepareCoordinator(RunFlags& flags) {
  LaunchOptions& launch = flags.launch;
  const Graphs graphs = flags.no_graphs ? Graphs::kNone : Graphs::kServed;
  launch.coordinator = flags.coordinator;
  if (launch.machine_count == 1) {
    if (!launch.coordinator.empty()) return nullptr;
    FERRY_ASSIGN_OR_RETURN(std::unique_ptr<HostedCoordinator> hosted,
                           HostedCoordinator::OnThisMachine(launch.local_count, graphs));
    launch.coordinator = hosted->address();
    std::fprintf(stderr, "ferry run: the coordinator is at %s\n", launch.coordinator.c_str());
    return hosted;
  }
  NodeOptions machine;
  machine.node_id = flags.machine_index;
  machine.num_nodes = launch.machine_count;
  machine.coordinator = launch.coordinator;
  FERRY_ASSIGN_OR_RETURN(const NodePlace place, FindPlace(machine, ProcessEnv));
  launch.machine_index = place.node_id;
  launch.coordinator = place.coordinator;
  if (!place.is_derived || place.node_id != 0) return nullptr;
  return HostedCoordinator::At(place.coordinator, launch.machine_count * launch.local_count,
                               graphs);
}

absl::StatusOr<int> Run(const CLI::App& verb, RunFlags& flags) {
  FERRY_RETURN_IF_ERROR(TakeCommand(verb, flags.after_dashes, flags.launch));
  flags.launch.prefix_output = !flags.no_prefix;
  flags.launch.machine_index = flags.machine_index.value_or(0);
  // Before anything is started for a command line that is wrong.
  FERRY_RETURN_IF_ERROR(CheckLaunchCounts(flags.launch));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<HostedCoordinator> hosted,
                         PrepareCoordinator(flags));
  FERRY_ASSIGN_OR_RETURN(const int status, Launch(flags.launch, stdout, stderr));
  if (hosted != nullptr && flags.launch.machine_count > 1) {
    hosted->WaitUntilAllLeft(kOthersPatience);
  }
  return status;
}

}  // namespace

Verb AddRunVerb(CLI::App& app, std::vector<std::string> after_dashes) {
  auto flags = std::make_shared<RunFlags>();
  flags->after_dashes = std::move(after_dashes);
  LaunchOptions& launch = flags->launch;
  CLI::App& verb =
      *app.add_subcommand("run", "Start the processes of a job: ferry run --nproc=2 -- CMD...");
  verb.prefix_command();
  verb.footer(
      "Two machines of four processes each; I is 0 on one and 1 on the other:\n"
      "  ferry coordinator --nodes=8\n"
      "  ferry run --nodes=2 --node-id=I --coordinator=HOST:9470 --nproc=4 -- CMD\n"
      "Each process finds its place in FERRY_*, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,\n"
      "MASTER_PORT and JAX_*. The first one that fails is named, the others are stopped, and its\n"
      "exit status is passed on (128 + the number for a signal). A signal that stops ferry run "
      "itself\n"
      "is passed on to them, and the status is 128 + its number even where all of them end well.\n"
      "Lines of output begin with [rank]; a carriage return ends a line, and one of over 64 KiB "
      "is\n"
      "split.\n"
      "When all have ended, whatever they left running is stopped, daemons included. kill -9 of\n"
      "ferry run kills the processes that it started, but not those that they started.");
  // CheckLaunchCounts knows their bounds, and the launcher's other users need it too.
  constexpr int kLeast = std::numeric_limits<int>::min();
  constexpr int kMost = std::numeric_limits<int>::max();
  AddNumber(verb, "--nproc", launch.local_count, "processes on this machine", kLeast, kMost);
  AddNumber(verb, "--nodes", launch.machine_count, "machines; ferry run is started on each", kLeast,
            kMost)
      ->type_name("M");
  AddNumber(verb, "--node-id", flags->machine_index, "which machine this is, from 0", 0, kMost)
      ->type_name("I");
  CLI::Option* coordinator =
      AddCoordinatorFlag(verb, flags->coordinator)
          ->description("where the coordinator listens; one machine starts its own");
  AddNumber(verb, "--gpus-per-proc", launch.gpus_per_process,
            "GPUs for each process, through CUDA_VISIBLE_DEVICES; 0 shows all to all", kLeast,
            kMost)
      ->type_name("K");
  AddDuration(verb, "--grace", launch.grace, "from the polite signal to SIGKILL");
  verb.add_flag("--no-prefix", flags->no_prefix,
                "pass output on byte for byte, without rank; lines of ranks may mix");
  verb.add_flag("--no-graphs", flags->no_graphs,
                "its own coordinator is no session target for TensorFlow's clients");
  return [flags, coordinator, &verb]() -> absl::StatusOr<int> {
    if (coordinator->count() > 0) {
      FERRY_RETURN_IF_ERROR(CheckAddress("--coordinator", flags->coordinator));
    }
    return Run(verb, *flags);
  };
}

}  // namespace ferry::cli
