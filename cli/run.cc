// SPDX-License-Identifier: Apache-2.0
// ferry run: starts the processes of a job on this machine, and a coordinator if necessary.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/hosted_coordinator.h"
#include "cli/master_discovery.h"
#include "cli/output.h"
#include "cli/refusal.h"
#include "cli/run_store.h"
#include "cli/verb.h"
#include "launch/launcher.h"
#include "launch/master_address.h"
#include "launch/printable.h"
#include "node/identity.h"
#include "node/node.h"

namespace ferry::cli {
namespace {

// How long the machine that runs the coordinator waits for the processes of other machines.
constexpr absl::Duration kOthersTimeout = absl::Seconds(10);
// How long a machine whose processes failed tries to notify other machines' processes that are
// waiting to join. Delays its own exit.
constexpr absl::Duration kFailureTimeout = absl::Milliseconds(500);
// Time for the coordinator to report that the job cannot begin.
constexpr absl::Duration kRefusalTimeout = absl::Seconds(1);
// The same as processes wait for a coordinator and for other nodes, see NodeOptions.
constexpr absl::Duration kDiscoveryTimeout = absl::Minutes(5);

struct RunFlags {
  std::string coordinator;
  std::optional<int> machine_index;
  std::string stdin_rank = "none";
  std::optional<absl::Duration> heartbeat_timeout;
  bool no_prefix = false;
  bool no_graphs = false;
  bool no_store = false;
  std::vector<std::string> after_dashes;
  LaunchOptions launch;
};

// Takes the command, which may be preceded by "--". A later "--" belongs to the command.
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

// Parses "none", or a rank.
absl::Status TakeStdin(const std::string& text, LaunchOptions& launch) {
  if (text == "none") return absl::OkStatus();
  const int rank_count = launch.local_count * launch.machine_count;
  int rank = 0;
  if (!absl::SimpleAtoi(text, &rank) || rank < 0 || rank >= rank_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stdin: ", Quoted(text), " is not \"none\" or a rank below ", rank_count));
  }
  launch.stdin_rank = rank;
  return absl::OkStatus();
}

// The environment that identifies this machine within a job. Within a rank of another `ferry run`
// those variables describe the other job and are hidden.
class RunEnvironment final {
 public:
  RunEnvironment() : is_nested_(IsRankOfFerryRun(ProcessEnv)) {}

  bool is_nested() const { return is_nested_; }
  std::optional<std::string> operator()(const char* name) const {
    if (is_nested_ && absl::StartsWith(name, "FERRY_")) return std::nullopt;
    return ProcessEnv(name);
  }

 private:
  const bool is_nested_;
};

// The contributions of this process to the job's rendezvous while it runs.
struct JobBootstrap {
  // Null: another process runs the coordinator.
  std::unique_ptr<HostedCoordinator> hosted;
  // Null: the job has one machine.
  std::unique_ptr<MasterDiscovery> master;
  // The PyTorch store of a job of one machine, unless rank 0 hosts it.
  std::unique_ptr<RunStore> store;
};

// Fills in the coordinator, and starts one if this machine is to run it.
absl::StatusOr<std::unique_ptr<HostedCoordinator>> PrepareCoordinator(
    RunFlags& flags, const RunEnvironment& environment) {
  LaunchOptions& launch = flags.launch;
  const Graphs graphs = flags.no_graphs ? Graphs::kNone : Graphs::kServed;
  launch.coordinator = flags.coordinator;
  if (launch.coordinator.empty()) {
    launch.coordinator = environment("FERRY_COORDINATOR").value_or("");
    if (!launch.coordinator.empty()) {
      FERRY_RETURN_IF_ERROR(CheckAddress("FERRY_COORDINATOR", launch.coordinator));
    } else if (environment.is_nested()) {
      std::fprintf(stderr,
                   "ferry run: this is rank %s of the job at %s; starting a separate job "
                   "(--coordinator=%s would join that one)\n",
                   Printable(ProcessEnv("FERRY_NODE_ID").value_or("?")).c_str(),
                   Printable(ProcessEnv("FERRY_COORDINATOR").value_or("?")).c_str(),
                   Printable(ProcessEnv("FERRY_COORDINATOR").value_or("?")).c_str());
    }
  }
  if (!launch.coordinator.empty() && flags.heartbeat_timeout.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("run: --heartbeat-timeout is for a coordinator that ferry run starts; the one "
                     "at ",
                     launch.coordinator, " has its own (ferry coordinator --heartbeat-timeout)"));
  }
  FERRY_ASSIGN_OR_RETURN(const std::optional<absl::Duration> heartbeat_timeout,
                         FindHeartbeatTimeout(flags.heartbeat_timeout));
  launch.heartbeat_timeout = heartbeat_timeout;
  if (launch.machine_count == 1) {
    if (!launch.coordinator.empty()) return nullptr;
    FERRY_ASSIGN_OR_RETURN(
        std::unique_ptr<HostedCoordinator> hosted,
        HostedCoordinator::OnThisMachine(launch.local_count, graphs, heartbeat_timeout));
    launch.coordinator = hosted->address();
    std::fprintf(stderr, "ferry run: the coordinator is at %s\n", launch.coordinator.c_str());
    return hosted;
  }
  NodeOptions machine;
  machine.node_id = flags.machine_index;
  machine.num_nodes = launch.machine_count;
  machine.coordinator = launch.coordinator;
  FERRY_ASSIGN_OR_RETURN(const NodeIdentity node_identity,
                         ResolveNodeIdentity(machine, environment));
  launch.machine_index = node_identity.node_id;
  launch.coordinator = node_identity.coordinator;
  if (!node_identity.is_derived || node_identity.node_id != 0) return nullptr;
  auto hosted =
      HostedCoordinator::At(node_identity.coordinator, launch.machine_count * launch.local_count,
                            graphs, heartbeat_timeout);
  if (!hosted.ok()) return WhyNotListening(node_identity.coordinator, hosted.status());
  return hosted;
}

// The coordinator's job consists of the processes of all machines. If its size differs, the
// machines were given different counts.
absl::Status CheckJobSize(const LaunchOptions& launch, int num_nodes) {
  const int rank_count = launch.machine_count * launch.local_count;
  if (num_nodes == rank_count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "run: machine ", launch.machine_index, " has --nodes=", launch.machine_count,
      " and --nproc=", launch.local_count, ", which makes ", rank_count,
      " processes, but the coordinator at ", launch.coordinator, " serves a job of ", num_nodes,
      "; both are the same on every machine, and --nodes of ferry coordinator is their product"));
}

// True if the coordinator is to serve PyTorch's store: an address in the environment means that
// rank 0 does.
bool WantsStore(const RunFlags& flags) {
  const MasterRequest wish = ReadMasterWish(ProcessEnv);
  if (flags.no_store || wish.host.has_value() || wish.port.has_value()) return false;
  for (const std::string& note : wish.notes) {
    std::fprintf(stderr, "ferry run: %s\n", Printable(note).c_str());
  }
  return true;
}

void SayWhyNoStore(const std::string& coordinator, const absl::Status& why) {
  const std::string reason = absl::IsUnimplemented(why)
                                 ? "is of a version that does not serve PyTorch's store"
                                 : absl::StrCat("serves no PyTorch store: ", why.message());
  std::fprintf(stderr, "ferry run: the coordinator at %s %s; rank 0 hosts it\n",
               Printable(coordinator).c_str(), Printable(reason).c_str());
}

absl::Status PrepareMasterOfOneMachine(RunFlags& flags, JobBootstrap& bootstrap) {
  LaunchOptions& launch = flags.launch;
  if (WantsStore(flags)) {
    auto store = RunStore::Open(launch.coordinator);
    if (store.ok()) {
      bootstrap.store = *std::move(store);
      launch.master = bootstrap.store->address();
      launch.store_run_id = bootstrap.store->run_id();
      return absl::OkStatus();
    }
    SayWhyNoStore(launch.coordinator, store.status());
  }
  FERRY_ASSIGN_OR_RETURN(const MasterAddress master,
                         ChooseMaster(ReadMasterWish(ProcessEnv), "127.0.0.1", 1,
                                      {.free_port = FreePort, .is_own = IsOwnAddress}));
  for (const std::string& note : master.notes) {
    std::fprintf(stderr, "ferry run: %s\n", Printable(note).c_str());
  }
  launch.master = JoinHostPort(master.host, master.port);
  return absl::OkStatus();
}

// Fills in MASTER_ADDR and MASTER_PORT, which the first machine chooses.
absl::Status PrepareMaster(RunFlags& flags, JobBootstrap& bootstrap) {
  LaunchOptions& launch = flags.launch;
  if (launch.machine_count == 1) return PrepareMasterOfOneMachine(flags, bootstrap);
  FERRY_ASSIGN_OR_RETURN(bootstrap.master,
                         MasterDiscovery::Join(launch.coordinator, kDiscoveryTimeout));
  if (absl::Status status = CheckJobSize(launch, bootstrap.master->num_nodes()); !status.ok()) {
    // A coordinator that only reports why the job cannot begin may not know its size.
    const absl::Status refusal = bootstrap.master->Refusal(kRefusalTimeout);
    return refusal.ok() ? status : refusal;
  }
  MasterPlace place;
  if (launch.machine_index == 0) {
    if (WantsStore(flags)) {
      const absl::Status status = bootstrap.master->OpenStore();
      if (!status.ok()) SayWhyNoStore(launch.coordinator, status);
    }
    FERRY_ASSIGN_OR_RETURN(place, bootstrap.master->Answer(ProcessEnv, launch.machine_count));
  } else {
    FERRY_ASSIGN_OR_RETURN(
        place, bootstrap.master->Ask(ProcessEnv, launch.machine_index, kDiscoveryTimeout));
    // Only the first machine answers requests.
    bootstrap.master = nullptr;
  }
  launch.master = std::move(place.address);
  launch.store_run_id = std::move(place.store_run_id);
  return absl::OkStatus();
}

// True if another process reported that the job cannot begin.
bool HasRefusal(const JobBootstrap& bootstrap) {
  return bootstrap.master != nullptr && !bootstrap.master->Refusal().ok();
}

// Blocks until the processes of this machine have ended. On error, none was started.
absl::StatusOr<int> RunProcesses(RunFlags& flags, JobBootstrap& bootstrap) {
  // Check the command line before starting anything.
  FERRY_RETURN_IF_ERROR(CheckLaunchCounts(flags.launch));
  FERRY_RETURN_IF_ERROR(TakeStdin(flags.stdin_rank, flags.launch));
  FERRY_ASSIGN_OR_RETURN(bootstrap.hosted, PrepareCoordinator(flags, RunEnvironment()));
  FERRY_RETURN_IF_ERROR(PrepareMaster(flags, bootstrap));
  return Launch(flags.launch, stdout, stderr);
}

// Returns the coordinator's address as given; empty if unknown, or if node 0 runs it.
std::string GivenCoordinator(const RunFlags& flags) {
  if (!flags.launch.coordinator.empty()) return flags.launch.coordinator;
  if (!flags.coordinator.empty()) return flags.coordinator;
  return RunEnvironment()("FERRY_COORDINATOR").value_or("");
}

// Fails the processes of other machines, and their `ferry run`, with `why`, so that they do not
// wait for this machine's processes, some of which will not join. Returns `why`.
absl::Status ReportToOtherMachines(const RunFlags& flags, const absl::Status& why) {
  const LaunchOptions& launch = flags.launch;
  RefusedNode refused{.coordinator = GivenCoordinator(flags)};
  if (refused.coordinator.empty()) {
    NodeOptions machine;
    machine.node_id = flags.machine_index;
    machine.num_nodes = launch.machine_count;
    const RunEnvironment environment;
    const absl::StatusOr<NodeIdentity> node_identity = ResolveNodeIdentity(machine, environment);
    const std::optional<RefusedNode> found =
        node_identity.ok() ? AsRefused(*node_identity) : FindRefusedNode(machine, environment);
    if (!found.has_value()) return why;
    refused = *found;
  }
  // --nproc itself may be wrong. Machines get the reason before they compare counts.
  const int64_t ranks = int64_t{launch.machine_count} * launch.local_count;
  const bool is_count = launch.local_count > 0 && CheckLaunchCounts(launch).ok();
  return ReportToOthers(refused, why,
                        {.nodes = is_count ? static_cast<int>(ranks) : launch.machine_count,
                         .others = launch.machine_count - 1,
                         .timeout = LateNodeTimeout(kDiscoveryTimeout)});
}

absl::StatusOr<int> Run(const CLI::App& verb, RunFlags& flags) {
  FERRY_RETURN_IF_ERROR(TakeCommand(verb, flags.after_dashes, flags.launch));
  flags.launch.prefix_output = !flags.no_prefix;
  flags.launch.machine_index = flags.machine_index.value_or(0);
  JobBootstrap bootstrap;
  absl::StatusOr<int> status = RunProcesses(flags, bootstrap);
  const bool is_done = status.ok() && *status == kDone;
  if (status.ok() && !is_done && flags.launch.machine_count > 1) {
    ReportCannotJoin(
        flags.launch.coordinator,
        absl::AbortedError(absl::StrCat("ferry run of machine ", flags.launch.machine_index,
                                        " has ended with status ", *status)),
        kFailureTimeout);
  } else if (!status.ok() && flags.launch.machine_count > 1 &&
             !absl::IsDeadlineExceeded(status.status()) && !HasRefusal(bootstrap)) {
    // If the coordinator was not found in time, a second search will not help; and a refusal
    // reaches the others by itself.
    status = ReportToOtherMachines(flags, status.status());
  }
  if (bootstrap.master != nullptr && is_done) {
    // Other machines' processes may be independent of this machine's, which have ended.
    FERRY_RETURN_IF_ERROR(bootstrap.master->WaitUntilAllAnswered(kDiscoveryTimeout));
  }
  if (bootstrap.hosted != nullptr && flags.launch.machine_count > 1) {
    bootstrap.hosted->WaitUntilAllLeft(kOthersTimeout);
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
      "Each process reads its identity from FERRY_*, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,\n"
      "MASTER_PORT and JAX_*, and a heartbeat timeout from FERRY_HEARTBEAT_TIMEOUT. MASTER_ADDR\n"
      "and MASTER_PORT are a store of PyTorch's protocol that the coordinator serves for this run\n"
      "alone; TORCHELASTIC_* tell PyTorch not to host one. With --no-store, or with a value in\n"
      "the first machine's environment, MASTER_ADDR is the machine of rank 0, whose process\n"
      "listens there. The first machine chooses and publishes the address through the\n"
      "coordinator; why a value of its environment cannot be used is printed.\n"
      "When a process fails it is reported, the others are stopped, and its exit status is\n"
      "returned (128 + the number for a signal). A signal that stops ferry run is forwarded to\n"
      "the processes, and the status is 128 + its number whatever theirs are. Ctrl-Z also stops\n"
      "the processes, and fg or bg continues them.\n"
      "Processes read /dev/null unless --stdin names one, which then reads this standard input: a\n"
      "file, a pipe, or terminal input while ferry run is in the foreground; Ctrl-D ends it.\n"
      "In a rank of another ferry run it starts a separate job unless --coordinator names one.\n"
      "Lines of output begin with [rank]; a carriage return ends a line, and a line of over\n"
      "64 KiB is split.\n"
      "When all have ended, remaining descendants are stopped, including daemons. kill -9 of\n"
      "ferry run kills the processes that it started, but not their descendants.");
  // CheckLaunchCounts checks the bounds, for all users of the launcher.
  constexpr int kLeast = std::numeric_limits<int>::min();
  constexpr int kMost = std::numeric_limits<int>::max();
  AddNumber(verb, "--nproc", launch.local_count, "processes on this machine", kLeast, kMost);
  AddNumber(verb, "--nodes", launch.machine_count, "machines; ferry run is started on each", kLeast,
            kMost)
      ->type_name("M");
  AddNumber(verb, "--node-id", flags->machine_index, "id of this machine, from 0", 0, kMost)
      ->type_name("I");
  // Not AddCoordinatorFlag: in a rank of another `ferry run`, FERRY_COORDINATOR is that job's.
  CLI::Option* coordinator =
      verb.add_option("--coordinator", flags->coordinator,
                      "where the coordinator listens, else FERRY_COORDINATOR of the environment; "
                      "one machine starts its own")
          ->type_name("HOST:PORT");
  AddNumber(verb, "--gpus-per-proc", launch.gpus_per_process,
            "GPUs for each process, through CUDA_VISIBLE_DEVICES; 0 shows all to all", kLeast,
            kMost)
      ->type_name("K");
  AddHeartbeatTimeout(verb, flags->heartbeat_timeout);
  AddDuration(verb, "--grace", launch.grace, "time from the first signal to SIGKILL");
  verb.add_option("--stdin", flags->stdin_rank,
                  "the rank that reads this standard input; the others, or with none all, read "
                  "/dev/null")
      ->type_name("RANK|none")
      ->capture_default_str();
  verb.add_flag("--no-prefix", flags->no_prefix,
                "pass output on byte for byte, without rank; lines of ranks may mix");
  verb.add_flag("--no-graphs", flags->no_graphs,
                "its own coordinator is no session target for TensorFlow's clients");
  verb.add_flag("--no-store", flags->no_store,
                "rank 0 hosts PyTorch's store, not the coordinator; on the first machine");
  return [flags, coordinator, &verb]() -> absl::StatusOr<int> {
    if (coordinator->count() > 0) {
      FERRY_RETURN_IF_ERROR(CheckAddress("--coordinator", flags->coordinator));
    }
    return Run(verb, *flags);
  };
}

}  // namespace ferry::cli
