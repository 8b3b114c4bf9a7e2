// SPDX-License-Identifier: Apache-2.0
// ferry demo: a whole job on this machine, from the first connection to the death of a worker.
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "base/clock.h"
#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/demo_tensors.h"
#include "cli/demo_worker.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cli/tool_agent.h"
#include "cli/tool_process.h"
#include "cli/verb.h"
#include "gpu/discovery.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Short for an interactive demo; the default is 100 s.
constexpr absl::Duration kHeartbeatTimeout = absl::Seconds(2);
// Hashes are printed individually only while they fit on a few lines.
constexpr int kMaxHashesShown = 8;

struct DemoFlags {
  int nproc = 4;
  bool verbose = false;
};

// "0.4ms", or "0.4ms to 1.1ms".
std::string Span(const std::vector<double>& seconds) {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  const std::string low = ShortDuration(absl::Seconds(*least));
  const std::string high = ShortDuration(absl::Seconds(*most));
  return low == high ? low : absl::StrCat(low, " to ", high);
}

std::string Nodes(const std::vector<int>& nodes) {
  return absl::StrCat(nodes.size() == 1 ? "node " : "nodes ", FormatRanges(nodes, 60));
}

void Say(const std::string& step, const std::string& text) {
  std::printf("  %-10s %s\n", step.c_str(), text.c_str());
  // A failure is remembered, and reported at the end.
  FlushOutput().IgnoreError();
}

// Runs the job and prints its progress. Used on one thread.
class Demo final {
 public:
  explicit Demo(const DemoFlags& flags) : flags_(flags), last_(flags.nproc - 1) {}

  absl::Status Run();

 private:
  absl::Status StartCoordinator();
  absl::Status StartWorkers();
  absl::Status ShowTopology();
  absl::Status ShowKeysAndBarriers();
  absl::Status ShowTensors();
  absl::Status ShowLateBarrier();
  absl::Status ShowDeath();
  absl::Status Stop();

  // Reads the next line of worker `node`, which must be of this event.
  absl::StatusOr<Json> Expect(int node, const std::string& event);
  // Reads the next line of several workers; returns the time in each, in seconds.
  absl::StatusOr<std::vector<double>> ExpectTimes(const std::vector<int>& nodes,
                                                  const std::string& event);
  // Reads the next line of all nodes but the last, which must have equal messages.
  absl::StatusOr<std::string> ExpectMessage(const std::string& event);
  std::vector<int> AllNodes() const;
  std::vector<int> Survivors() const;

  // Constant after construction.
  const DemoFlags& flags_;
  const int last_;  // the node that is killed

  std::string address_;
  std::unique_ptr<ToolProcess> coordinator_;
  std::vector<std::unique_ptr<ToolProcess>> workers_;
  absl::Time workers_started_;
};

std::vector<int> Demo::AllNodes() const {
  std::vector<int> nodes(flags_.nproc);
  for (int i = 0; i < flags_.nproc; ++i) nodes[i] = i;
  return nodes;
}

std::vector<int> Demo::Survivors() const {
  std::vector<int> nodes = AllNodes();
  nodes.pop_back();
  return nodes;
}

absl::StatusOr<Json> Demo::Expect(int node, const std::string& event) {
  const absl::Time deadline = SteadyClock().Now() + kDemoTimeout;
  const absl::StatusOr<std::string> line = workers_[node]->ReadLine(deadline, flags_.verbose);
  if (!line.ok()) {
    return absl::Status(line.status().code(),
                        absl::StrCat("step \"", event, "\": ", line.status().message()));
  }
  Json json = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("event", "") != event) {
    return absl::InternalError(
        absl::StrCat(workers_[node]->name(), " said ", *line, " instead of \"", event, "\""));
  }
  return json;
}

absl::StatusOr<std::vector<double>> Demo::ExpectTimes(const std::vector<int>& nodes,
                                                      const std::string& event) {
  std::vector<double> times;
  for (const int node : nodes) {
    FERRY_ASSIGN_OR_RETURN(const Json json, Expect(node, event));
    times.push_back(json.value("seconds", 0.0));
  }
  return times;
}

absl::StatusOr<std::string> Demo::ExpectMessage(const std::string& event) {
  std::string message;
  for (const int node : Survivors()) {
    FERRY_ASSIGN_OR_RETURN(const Json json, Expect(node, event));
    message = json.value("message", "");
    const bool names_it = absl::StrContains(message, absl::StrCat(last_));
    if (names_it) continue;
    return absl::InternalError(absl::StrCat("node ", node, " was told \"", message,
                                            "\", which does not name node ", last_));
  }
  return Printable(message);
}

absl::Status Demo::StartCoordinator() {
  FERRY_ASSIGN_OR_RETURN(
      coordinator_,
      ToolProcess::Start(
          "the coordinator",
          {"coordinator", "--listen=127.0.0.1:0", absl::StrCat("--nodes=", flags_.nproc),
           absl::StrCat("--heartbeat-timeout=", absl::FormatDuration(kHeartbeatTimeout))},
          std::nullopt));
  FERRY_ASSIGN_OR_RETURN(
      const std::string ready,
      coordinator_->ReadLine(SteadyClock().Now() + kDemoTimeout, flags_.verbose));
  absl::string_view address = ready;
  if (!absl::ConsumePrefix(&address, "ferry coordinator listening on ")) {
    return absl::InternalError(absl::StrCat("the coordinator said ", ready));
  }
  address_ = std::string(address);
  return absl::OkStatus();
}

absl::Status Demo::StartWorkers() {
  // Partitions the GPUs among the workers: a GPU used by two nodes is rejected.
  std::vector<std::string> gpus;
  for (const Device& device : DiscoverLocal().topology.devices) {
    if (device.kind == DeviceKind::kGpu) gpus.push_back(device.uuid);
  }
  const size_t share = (gpus.size() + flags_.nproc - 1) / flags_.nproc;
  workers_started_ = SteadyClock().Now();
  for (int node = 0; node < flags_.nproc; ++node) {
    const size_t first = std::min(share * node, gpus.size());
    const size_t end = std::min(first + share, gpus.size());
    FERRY_ASSIGN_OR_RETURN(
        std::unique_ptr<ToolProcess> worker,
        ToolProcess::Start(
            absl::StrCat("worker ", node),
            {"demo-worker", absl::StrCat("--coordinator=", address_),
             absl::StrCat("--node-id=", node), absl::StrCat("--num-nodes=", flags_.nproc)},
            gpus.empty() ? std::nullopt
                         : std::optional<std::string>(
                               absl::StrJoin(gpus.begin() + first, gpus.begin() + end, ","))));
    workers_.push_back(std::move(worker));
  }
  Say("start",
      absl::StrCat("the coordinator listens on ", address_, " (pid ", coordinator_->pid(), ")"));
  std::vector<int> pids;
  for (const auto& worker : workers_) pids.push_back(worker->pid());
  Say("", absl::StrCat("workers ", FormatRanges(AllNodes()), " are pids ", FormatRanges(pids, 60)));
  return absl::OkStatus();
}

absl::Status Demo::ShowTopology() {
  std::vector<double> join;
  std::vector<std::string> hashes;
  Json first;
  for (const int node : AllNodes()) {
    FERRY_ASSIGN_OR_RETURN(const Json joined, Expect(node, "joined"));
    join.push_back(joined.value("join_s", 0.0));
    hashes.push_back(joined.value("topology", ""));
    if (node == 0) first = joined;
  }
  const std::string ready = ShortDuration(SteadyClock().Now() - workers_started_);
  Say("join", absl::StrCat("all ", flags_.nproc, " joined and hold everyone's devices after ",
                           Span(join), "; ", ready, " since the first fork"));
  Say("topology", first.value("summary", ""));
  const std::string no_gpu = first.value("no_gpu", "");
  if (!no_gpu.empty()) Say("", absl::StrCat("no GPU: ", Printable(no_gpu)));
  for (int node = 0; node < flags_.nproc && flags_.nproc <= kMaxHashesShown; ++node) {
    Say("", absl::StrCat("worker ", node, " holds ", hashes[node]));
  }
  for (const int node : AllNodes()) {
    if (hashes[node] == hashes[0]) continue;
    return absl::InternalError(absl::StrCat("topologies differ: worker 0 holds ", hashes[0],
                                            ", worker ", node, " ", hashes[node]));
  }
  Say("", absl::StrCat("the same in all ", flags_.nproc, ", byte for byte"));
  return absl::OkStatus();
}

absl::Status Demo::ShowKeysAndBarriers() {
  FERRY_ASSIGN_OR_RETURN(const std::vector<double> keys, ExpectTimes(AllNodes(), "keys"));
  Say("keys", absl::StrCat("each set its own and got all ", flags_.nproc, " in ", Span(keys)));
  FERRY_ASSIGN_OR_RETURN(const std::vector<double> all, ExpectTimes(AllNodes(), "all"));
  const std::vector<int> even_nodes = EvenNodes(flags_.nproc);
  FERRY_ASSIGN_OR_RETURN(const std::vector<double> even, ExpectTimes(even_nodes, "even"));
  Say("barriers", absl::StrCat("all nodes passed \"demo/all\" in ", Span(all)));
  Say("", absl::StrCat(Nodes(even_nodes), " alone passed \"demo/even\" in ", Span(even)));
  return absl::OkStatus();
}

absl::Status Demo::ShowTensors() {
  Say("tensors",
      "node 0 sends, node 1 receives and checks every byte; the first and a second time");
  for (int i = 0; i < kDemoTransfers; ++i) {
    FERRY_ASSIGN_OR_RETURN(const Json json, Expect(1, "tensor"));
    const double bytes = json.value("bytes", 0.0);
    const absl::Duration first = absl::Seconds(json.value("first_s", 0.0));
    const absl::Duration again = absl::Seconds(json.value("again_s", 0.0));
    Say("", absl::StrCat(ShortBytes(bytes), " in ", ShortDuration(first), ", then in ",
                         ShortDuration(again), ", ", Printable(json.value("way", ""))));
  }
  return absl::OkStatus();
}

absl::Status Demo::ShowLateBarrier() {
  Say("late", absl::StrCat("barrier \"", kLateBarrier, "\", timeout ", ShortDuration(kLateTimeout),
                           "; node ", last_, " stays away on purpose"));
  FERRY_ASSIGN_OR_RETURN(const auto agent, ConnectTool(address_));
  FERRY_RETURN_IF_ERROR(agent->Set(kWatchingKey, "1"));
  FERRY_RETURN_IF_ERROR(Expect(last_, "waiting").status());
  // Queries the status as any client could at this moment.
  std::optional<coord::BarrierStatus> seen;
  const absl::Time deadline = SteadyClock().Now() + kDemoTimeout;
  bool is_over = false;
  while (!is_over && SteadyClock().Now() < deadline) {
    FERRY_ASSIGN_OR_RETURN(const coord::JobStatus status, agent->Status());
    is_over = seen.has_value();
    for (const coord::BarrierStatus& barrier : status.barriers) {
      if (barrier.id != kLateBarrier) continue;
      seen = barrier;
      is_over = false;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  if (!seen) return absl::InternalError("the late barrier was never seen open");
  std::vector<std::string> arrivals;
  for (const auto& [node, after] : seen->arrivals) {
    arrivals.push_back(absl::StrCat("node ", node, " +", absl::ToInt64Milliseconds(after), "ms"));
    if (arrivals.size() == kMaxHashesShown) break;
  }
  Say("", absl::StrCat("seen by ferry status: arrived ", absl::StrJoin(arrivals, ", "),
                       "; missing ", seen->missing));
  FERRY_ASSIGN_OR_RETURN(const std::string message, ExpectMessage("late"));
  Say("", absl::StrCat(Nodes(Survivors()), " got: ", message));
  return absl::OkStatus();
}

absl::Status Demo::ShowDeath() {
  Say("kill -9", absl::StrCat("node ", last_, " (pid ", workers_[last_]->pid(),
                              "); the heartbeat timeout is ", ShortDuration(kHeartbeatTimeout)));
  const absl::Time killed = SteadyClock().Now();
  workers_[last_]->Signal(SIGKILL);
  FERRY_ASSIGN_OR_RETURN(const std::string message, ExpectMessage("heard"));
  Say("", absl::StrCat(Nodes(Survivors()), " got, ", ShortDuration(SteadyClock().Now() - killed),
                       " later: ", message));
  return absl::OkStatus();
}

absl::Status Demo::Stop() {
  const absl::Time deadline = SteadyClock().Now() + kDemoTimeout;
  for (const int node : Survivors()) {
    FERRY_RETURN_IF_ERROR(workers_[node]->WaitForExit(deadline));
  }
  coordinator_->Signal(SIGTERM);
  return coordinator_->WaitForExit(deadline);
}

absl::Status Demo::Run() {
  const absl::Time start = SteadyClock().Now();
  std::printf("ferry demo: %s and a coordinator on this machine, each a process of its own\n\n",
              Count(flags_.nproc, "worker").c_str());
  FERRY_RETURN_IF_ERROR(StartCoordinator());
  FERRY_RETURN_IF_ERROR(StartWorkers());
  FERRY_RETURN_IF_ERROR(ShowTopology());
  FERRY_RETURN_IF_ERROR(ShowKeysAndBarriers());
  FERRY_RETURN_IF_ERROR(ShowTensors());
  FERRY_RETURN_IF_ERROR(ShowLateBarrier());
  FERRY_RETURN_IF_ERROR(ShowDeath());
  FERRY_RETURN_IF_ERROR(Stop());
  Say("done", absl::StrCat("every step went as it should; ",
                           ShortDuration(SteadyClock().Now() - start), " in all"));
  std::printf(
      "\nNext:\n"
      "  ferry run --nproc=4 -- ferry worker    a job that stays; Ctrl-C ends it. It says where "
      "its\n"
      "                                         coordinator is: ferry status "
      "--coordinator=HOST:PORT\n"
      "  ferry topo                             the devices of this machine and their paths\n"
      "  README.md                              a JAX program with ferry as its coordinator\n");
  return absl::OkStatus();
}

}  // namespace

Verb AddDemoVerb(CLI::App& app) {
  auto flags = std::make_shared<DemoFlags>();
  CLI::App& verb = *app.add_subcommand(
      "demo", "Run a complete job on this machine in a few seconds and explain each step");
  AddNumber(verb, "--nproc", flags->nproc, "worker processes", 2, 64);
  verb.add_flag("--verbose", flags->verbose, "also print all output of the processes");
  return [flags]() -> absl::StatusOr<int> {
    const absl::Status status = Demo(*flags).Run();
    if (status.ok()) return kDone;
    // A failure of the demo is not a usage error, whatever its code.
    return absl::AbortedError(absl::StrCat("demo: ", status.message()));
  };
}

}  // namespace ferry::cli
