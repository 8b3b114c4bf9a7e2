// SPDX-License-Identifier: Apache-2.0
// ferry coordinator: serves one job until it is stopped.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/file_limit.h"
#include "base/numbers.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/end_job_auth.h"
#include "cli/hosted_master.h"
#include "cli/signals.h"
#include "cli/successor.h"
#include "cli/verb.h"
#include "coord/server/server.h"

namespace ferry::cli {
namespace {

// gRPC counts in milliseconds, and 0 would make it ping continuously.
constexpr absl::Duration kLeastKeepalive = absl::Milliseconds(10);
constexpr absl::Duration kLeastQuorumTick = absl::Milliseconds(1);
constexpr absl::Duration kLeastSessionIdleTimeout = absl::Seconds(1);

struct CoordinatorFlags {
  int nodes = 0;
  std::string job;
  bool no_register_barrier = false;
  bool is_single_job = false;
  bool says_handover_format = false;
  coord::ServerOptions server;
  master::MasterOptions master;
};

// Parses "worker:4,ps:2", or a name alone with the count from --nodes.
absl::StatusOr<std::vector<coord::JobSpec>> ParseJobs(const std::string& text, int nodes) {
  std::vector<coord::JobSpec> specs;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> fields =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    const bool is_name = !fields.first.empty() && absl::ascii_isalpha(fields.first[0]) &&
                         std::all_of(fields.first.begin(), fields.first.end(), [](char c) {
                           return absl::ascii_isalnum(c) || c == '_' || c == '-';
                         });
    if (!is_name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--job: ", Quoted(fields.first), " is no name: a letter, then letters, digits, _ and -"));
    }
    coord::JobSpec spec{fields.first, nodes};
    if (!fields.second.empty()) {
      const std::optional<int64_t> count = ParseWhole(
          fields.second, std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
      if (!count) {
        return absl::InvalidArgumentError(absl::StrCat("--job: \"", part, "\" is not NAME:COUNT"));
      }
      spec.tasks = static_cast<int>(*count);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

// Adds the flags that limit what TensorFlow clients may use.
void AddMasterLimits(CLI::App& verb, master::MasterOptions& options) {
  const auto add = [&verb](const char* flag, size_t& value, const char* description) {
    AddLimit(verb, flag, value, description)->group("Limits of TensorFlow clients");
  };
  add("--max-sessions", options.max_sessions, "sessions");
  add("--max-steps", options.max_steps, "steps in progress, of all sessions");
  add("--max-step-graphs", options.max_step_graphs,
      "different steps of a session that workers cache; the least recently used is evicted");
  add("--max-callables", options.max_callables, "callables of a session");
  add("--max-partial-runs", options.max_partial_runs, "partial runs of a session");
  add("--max-request-bytes", options.max_request_bytes, "one request, after parsing");
  add("--max-graph-nodes", options.max_graph_nodes, "nodes of a session's graph");
  add("--max-graph-bytes", options.max_graph_bytes, "a session's graph, serialized");
  add("--max-all-graph-bytes", options.max_all_graph_bytes, "the graphs of all sessions");
  add("--max-constant-bytes", options.max_constant_bytes, "one constant");
  add("--max-all-constant-bytes", options.max_all_constant_bytes,
      "all constants of a session's graph");
  add("--max-feed-bytes", options.max_feed_bytes, "feeds of one call");
  add("--max-all-feed-bytes", options.max_all_feed_bytes, "feeds of all outstanding calls");
}

void AddLighthouseFlags(CLI::App& verb, coord::LighthouseOptions& options) {
  const std::string group = "Quorums of torchft";
  AddLimit(verb, "--lighthouse-min-replicas", options.min_replicas,
           "replicas that must have joined to form a quorum")
      ->group(group);
  AddDuration(verb, "--lighthouse-join-timeout", options.join_timeout,
              "how long they wait for others that send heartbeats but have not joined")
      ->group(group);
  AddDuration(verb, "--lighthouse-quorum-tick", options.quorum_tick,
              "how often it is checked whether a quorum can be formed", kLeastQuorumTick)
      ->group(group);
  AddDuration(verb, "--lighthouse-heartbeat-timeout", options.heartbeat_timeout,
              "a replica that is silent for longer is considered dead", kLeastHeartbeatTimeout)
      ->group(group);
}

//   Errors: FAILED_PRECONDITION if this process has clients that would lose it.
absl::Status CheckClients(coord::CoordinatorServer& server, const master::MasterHost& master) {
  std::vector<std::string> clients = server.ClientsThatPreventHandover();
  const size_t sessions = master.session_count();
  if (sessions > 0) {
    clients.push_back(
        absl::StrCat(sessions, " session", sessions == 1 ? "" : "s", " of TensorFlow clients"));
  }
  if (clients.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it serves ", absl::StrJoin(clients, ", "),
                   ", which cannot be handed over as connections of PyTorch's stores are"));
}

// Replaces this process by the program that is now at its path. Returns only if that fails, and the
// server goes on then.
absl::Status HandOver(coord::CoordinatorServer& server, const master::MasterHost& master,
                      const Successor& successor) {
  FERRY_RETURN_IF_ERROR(CheckClients(server, master));
  FERRY_RETURN_IF_ERROR(successor.Check());
  const std::unique_ptr<coord::PausedServer> paused = server.Pause();
  // Some may have come meanwhile.
  FERRY_RETURN_IF_ERROR(CheckClients(server, master));
  return successor.Replace(paused->state);
}

absl::StatusOr<int> Serve(CoordinatorFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(flags.server.coordinator.jobs, ParseJobs(flags.job, flags.nodes));
  flags.server.coordinator.register_barrier = !flags.no_register_barrier;
  flags.server.coordinator.reuse = !flags.is_single_job;
  flags.server.stop_grace = kCoordinatorGrace;
  if (flags.says_handover_format) {
    std::printf("%s%u\n", kHandoverFormatLine, coord::kHandoverFormat);
    return kDone;
  }
  // Before any thread exists, so that all threads inherit the mask.
  BlockedSignals signals({SIGINT, SIGTERM, SIGUSR2});
  const Successor successor;
  flags.server.predecessor = TakeOver();
  const bool is_successor = flags.server.predecessor.has_value();
  flags.server.on_stores_lost = [](const absl::Status& why) {
    std::fprintf(stderr,
                 "ferry coordinator: the connections of PyTorch's stores are lost, since their "
                 "state cannot be restored: %s\n",
                 std::string(why.message()).c_str());
  };
  // Each rank holds a connection.
  RaiseFileLimit();
  RequireEndJobAuth(flags.server);
  const std::unique_ptr<master::MasterHost> master = AddMaster(flags.master, flags.server);
  // Moved, since the state of a predecessor refers to all values of its stores.
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<coord::CoordinatorServer> server,
                         coord::CoordinatorServer::Create(std::move(flags.server)));
  if (is_successor) {
    std::fprintf(stderr, "ferry coordinator: has taken over %s\n", server->address().c_str());
  } else {
    std::printf("ferry coordinator listening on %s\n", server->address().c_str());
    std::fflush(stdout);
  }
  int signal = signals.Wait();
  for (; signal == SIGUSR2; signal = signals.Wait()) {
    const absl::Status why = HandOver(*server, *master, successor);
    std::fprintf(stderr, "ferry coordinator: is not handed over (SIGUSR2), and goes on: %s\n",
                 std::string(why.message()).c_str());
  }
  std::fprintf(stderr, "ferry coordinator: stopping (%s)\n",
               signal == SIGINT ? "SIGINT" : "SIGTERM");
  master->Stop(kMasterGrace);
  server->Stop();
  return kDone;
}

}  // namespace

Verb AddCoordinatorVerb(CLI::App& app) {
  auto flags = std::make_shared<CoordinatorFlags>();
  CLI::App& verb = *app.add_subcommand(
      "coordinator", "Serve consecutive jobs: membership, barriers, key-value store, topology");
  coord::CoordinatorOptions& options = flags->server.coordinator;
  flags->job = "jax_worker";
  flags->server.listen = ":9470";
  AddNumber(verb, "--nodes", flags->nodes, "processes of the job", 1, 1000000)->default_str("");
  verb.add_option("--listen", flags->server.listen,
                  "listen address; without HOST all IPv4 and IPv6 addresses; port 0: any free port")
      ->type_name("[HOST]:PORT")
      ->capture_default_str();
  verb.add_option("--job", flags->job,
                  "name of the job, or its named parts: worker:4,ps:2 (instead of --nodes)")
      ->capture_default_str();
  CLI::Option* heartbeat_timeout = AddDuration(
      verb, "--heartbeat-timeout", options.heartbeat_timeout,
      "a process that is silent for longer is considered dead; earlier if its client's heartbeats "
      "imply a shorter timeout, and later only without this flag",
      kLeastHeartbeatTimeout);
  AddDuration(verb, "--connect-timeout", options.register_timeout,
              "how long the first process waits for the others to join");
  AddDuration(verb, "--shutdown-timeout", options.shutdown_timeout,
              "how long a process that shuts down waits for the others; 0: not at all");
  AddDuration(verb, "--enumerate-timeout", options.enumerate_timeout,
              "how long a process waits for the devices of the others");
  verb.add_flag("--recoverable", options.recoverable,
                "processes may die and come back without failing the job");
  verb.add_flag("--no-register-barrier", flags->no_register_barrier,
                "let each process join at once instead of together");
  AddDeprecatedName(verb,
                    verb.add_flag("--single-job", flags->is_single_job,
                                  "do not start a new job after the first one has ended"),
                    "--no-reuse");
  AddLimit(verb, "--max-key-bytes", options.max_key_bytes, "longest key");
  AddLimit(verb, "--max-value-bytes", options.max_value_bytes, "largest value");
  AddLimit(verb, "--max-frame-bytes", options.max_frame_bytes,
           "largest frame from one of Ferry's clients", 1 << 20, std::numeric_limits<int>::max());
  AddLimit(verb, "--max-store-bytes", options.max_store_bytes, "size of the whole store");
  AddLimit(verb, "--max-keys", options.max_keys, "keys in the store");
  AddDeprecatedName(
      verb,
      AddLimit(verb, "--max-pending-gets", options.max_pending_gets, "calls that wait for keys"),
      "--max-parked-waits");
  AddDuration(verb, "--worker-timeout", flags->master.worker_timeout,
              "how long a TensorFlow client that opens a session waits for workers");
  AddDuration(verb, "--session-idle-timeout", flags->master.session_idle_timeout,
              "a session of a TensorFlow client that is idle for longer is closed",
              kLeastSessionIdleTimeout);
  AddMasterLimits(verb, flags->master);
  AddLimit(verb, "--trace-steps", flags->master.trace_steps,
           "steps of TensorFlow clients kept for ferry trace; 0: none", 0, 100'000);
  AddDuration(verb, "--keepalive-time", flags->server.keepalive_time,
              "probe a connection that is idle for this long", kLeastKeepalive);
  AddDuration(verb, "--keepalive-timeout", flags->server.keepalive_timeout,
              "close it when the probe is not acknowledged within this time", kLeastKeepalive);
  AddLimit(verb, "--max-store-client-bytes", flags->server.max_tcp_store_client_bytes,
           "memory of the requests and replies of PyTorch's store clients together", 64 << 20);
  AddNumber(verb, "--store-threads", flags->server.tcp_store_threads,
            "threads that serve PyTorch's stores", 1, coord::TcpStoreServer::kMaxThreads);
  AddDuration(verb, "--store-idle-timeout", flags->server.tcp_store_idle_timeout,
              "PyTorch's store on this port is emptied when it has had no client for this long");
  AddLighthouseFlags(verb, flags->server.lighthouse);
  // For the process that is to be replaced by this program: see Successor::Check.
  verb.add_flag("--" + std::string(kHandoverFormatFlag), flags->says_handover_format)->group("");
  return [flags, heartbeat_timeout]() -> absl::StatusOr<int> {
    flags->server.coordinator.heartbeat_timeout_is_limit = heartbeat_timeout->count() > 0;
    if (flags->nodes == 0 && flags->job.find(':') == std::string::npos) {
      return absl::InvalidArgumentError("say --nodes=N or --job=NAME:COUNT");
    }
    if (flags->nodes != 0 && flags->job.find(':') != std::string::npos) {
      return absl::InvalidArgumentError(
          "--nodes and --job=NAME:COUNT both say how many; leave one of them out");
    }
    return Serve(*flags);
  };
}

}  // namespace ferry::cli
