// SPDX-License-Identifier: Apache-2.0
// ferry bench-worker (hidden): a process started by a ferry bench that moves tensors.
#include "bench/worker.h"

#include <memory>
#include <numeric>
#include <string>

#include "base/status_macros.h"
#include "bench/cold_worker.h"
#include "bench/pattern_worker.h"
#include "bench/sendrecv_worker.h"
#include "bench/shm_sync.h"
#include "cli/as_node.h"
#include "cli/verb.h"

namespace ferry::cli {
namespace {

absl::StatusOr<int> Work(NodeOptions& options, const std::string& plan_text) {
  FERRY_ASSIGN_OR_RETURN(const BenchPlan plan, DecodeBenchPlan(plan_text));
  // No value of --spin expresses this.
  if (plan.is_polling) options.transfer.spin = absl::InfiniteDuration();
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Node> node, Node::Join(options));
  FERRY_ASSIGN_OR_RETURN(const auto meeting, ShmSync::Map(node->num_nodes(), plan.floor_file));
  BenchParticipants party{.node = *node, .rank = node->node_id()};
  party.nodes.resize(static_cast<size_t>(node->num_nodes()));
  std::iota(party.nodes.begin(), party.nodes.end(), 0);
  FERRY_RETURN_IF_ERROR(AsFailure(RunBenchWork(party, *meeting, plan)));
  FERRY_RETURN_IF_ERROR(AsFailure(node->Shutdown()));
  return kDone;
}

}  // namespace

absl::Status RunBenchWork(const BenchParticipants& party, BenchSync& meeting,
                          const BenchPlan& plan) {
  if (plan.pattern == "cold") return RunColdWorker(party, meeting, plan);
  if (plan.pattern == "sendrecv") return RunSendRecvWorker(party, meeting, plan);
  return RunPatternWorker(party, meeting, plan);
}

Verb AddBenchWorkerVerb(CLI::App& app) {
  struct Flags {
    NodeOptions node;
    std::string plan;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = *app.add_subcommand("bench-worker", "One of the processes of ferry bench");
  verb.group("");  // Hidden.
  verb.add_option("--plan", flags->plan)->required();
  AddNodeFlags(verb, flags->node);
  return [flags]() { return Work(flags->node, flags->plan); };
}

}  // namespace ferry::cli
