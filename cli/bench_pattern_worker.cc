// SPDX-License-Identifier: Apache-2.0
// Every case, in the same order at all nodes.
#include "cli/bench_pattern_worker.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "cli/bench_floors.h"
#include "cli/bench_flows.h"
#include "cli/bench_rounds.h"
#include "cli/bench_works.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPatternsStep = 1;
// From here on steps of their own.
constexpr int64_t kFirstOwnStep = 1000;
constexpr int kMostKeysOfACase = 200'000;
// Of the file that all processes map; the first one is the floor's.
constexpr int kRoundsPage = 1;
constexpr int kCasesPage = 2;

class PatternWorker final {
 public:
  static absl::StatusOr<std::unique_ptr<PatternWorker>> Create(Node& node, const BenchPlan& plan) {
    FERRY_ASSIGN_OR_RETURN(auto rounds, PageBarrier::Map(plan.floor_file, kRoundsPage));
    FERRY_ASSIGN_OR_RETURN(auto cases, PageBarrier::Map(plan.floor_file, kCasesPage));
    FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(kPatternsStep));
    return std::unique_ptr<PatternWorker>(
        new PatternWorker(node, plan, std::move(rounds), std::move(cases), std::move(step)));
  }

  absl::Status Run() {
    FERRY_RETURN_IF_ERROR(TellSpin());
    for (const size_t bytes : plan_.sizes) {
      FERRY_RETURN_IF_ERROR(TellFloors(bytes));
      for (const BenchMode mode : plan_.modes) {
        for (const int inflight : plan_.DepthsOf(bytes)) {
          FERRY_RETURN_IF_ERROR(RunCase({bytes, mode, inflight}));
        }
      }
      // What this size was made of is none of the next one's.
      node_.exchange().arena().Trim();
    }
    FERRY_RETURN_IF_ERROR(step_.Close(kBenchPeerPatience));
    return node_.Shutdown();
  }

 private:
  PatternWorker(Node& node, const BenchPlan& plan, std::unique_ptr<PageBarrier> rounds,
                std::unique_ptr<PageBarrier> cases, Step step)
      : node_(node),
        plan_(plan),
        sets_(FlowSetsOf(plan.pattern, node.num_nodes())),
        rounds_(std::move(rounds)),
        cases_(std::move(cases)),
        step_(std::move(step)) {}

  bool is_keyed() const { return plan_.pattern == "keyed"; }
  bool is_steps() const { return plan_.pattern == "steps"; }

  // Between nodes 0 and 1; the others have none.
  absl::Status TellSpin() {
    absl::Duration spin;
    if (node_.node_id() < 2) {
      FERRY_ASSIGN_OR_RETURN(spin, MeasureSpin(plan_.floor_file, node_.node_id() == 0));
    }
    TellBench({{"event", "spin"}, {"spin_s", absl::ToDoubleSeconds(spin)}});
    return AwaitAll();
  }

  // Of what the node that receives most receives in one round.
  absl::Status TellFloors(size_t bytes) {
    Json floors = {{"event", "floors"}};
    if (node_.node_id() == 0) {
      size_t most = 1;
      for (const BenchFlowSet& set : sets_) most = std::max(most, set.MostReceived());
      FERRY_ASSIGN_OR_RETURN(Tensor from, MakeBenchTensor(node_, most * bytes));
      FERRY_ASSIGN_OR_RETURN(Tensor to, MakeBenchTensor(node_, most * bytes));
      WritePattern(from.mutable_data(), most * bytes, 1);
      WritePattern(to.mutable_data(), most * bytes, 2);
      const int rounds = std::clamp(plan_.IterationsOf(most * bytes), 3, 30);
      floors["memcpy_s"] = absl::ToDoubleSeconds(
          MeasureMemcpy(to.mutable_data(), from.data(), most * bytes, rounds));
    }
    TellBench(floors);
    return AwaitAll();
  }

  absl::Status AwaitAll() { return cases_->Pass(node_.num_nodes(), PageBarrier::Wait::kSleeping); }

  int RoundsOf(const BenchWorkCase& at) const {
    // A round of them has all keys.
    if (is_keyed()) {
      const int fits = plan_.IterationsOf(at.bytes * static_cast<size_t>(plan_.keys));
      return plan_.iterations > 0 ? fits : std::clamp(kMostKeysOfACase / plan_.keys, 3, fits);
    }
    return is_steps() ? plan_.IterationsOf(at.bytes * static_cast<size_t>(at.inflight))
                      : std::max(plan_.IterationsOf(at.bytes) / at.inflight, 3);
  }

  absl::Status RunCase(const BenchWorkCase& at) {
    const int iterations = RoundsOf(at);
    const int warm_ups = at.inflight == 1 ? plan_.WarmUpsOf(at.bytes) : 1;
    if (is_keyed() || is_steps()) {
      absl::StatusOr<std::unique_ptr<BenchRoundWork>> work =
          is_keyed() ? MakeKeyedWork(node_, step_, plan_.keys, plan_.threads, at)
                     : MakeStepsWork(node_, next_step_, at);
      FERRY_RETURN_IF_ERROR(work.status());
      next_step_ += warm_ups + iterations;
      return RunWork({2, warm_ups, iterations}, **work, at, 1 - node_.node_id());
    }
    for (const BenchFlowSet& set : sets_) {
      const std::vector<int> members = set.Members();
      if (std::find(members.begin(), members.end(), node_.node_id()) == members.end()) {
        TellBench({{"event", "case"}});
        FERRY_RETURN_IF_ERROR(AwaitAll());
        continue;
      }
      FERRY_ASSIGN_OR_RETURN(const auto work, MakeFlowWork(node_, step_, set, at));
      int from = -1;
      for (const BenchFlow& flow : set.flows) {
        if (flow.dst == node_.node_id() && from < 0) from = flow.src;
      }
      FERRY_RETURN_IF_ERROR(
          RunWork({static_cast<int>(members.size()), warm_ups, iterations}, *work, at, from));
    }
    return absl::OkStatus();
  }

  // from: a node that sends to this one; -1: none does.
  absl::Status RunWork(const BenchRoundCount& count, BenchRoundWork& work, const BenchWorkCase& at,
                       int from) {
    FERRY_ASSIGN_OR_RETURN(const BenchRounds rounds, RunRounds(*rounds_, count, work));
    Json line = rounds.ToJson();
    line["event"] = "case";
    line["pages"] = DescribePages(node_.exchange().arena_stats());
    if (from >= 0 && !rounds.paths.empty()) {
      line["path_reason"] = PathReason(node_, from, at.bytes, rounds.paths);
    }
    TellBench(line);
    // Nobody begins the next case, or makes a noise, before this one is over everywhere.
    return AwaitAll();
  }

  Node& node_;
  const BenchPlan& plan_;
  const std::vector<BenchFlowSet> sets_;
  const std::unique_ptr<PageBarrier> rounds_;
  const std::unique_ptr<PageBarrier> cases_;
  Step step_;
  int64_t next_step_ = kFirstOwnStep;
};

}  // namespace

absl::Status RunPatternWorker(Node& node, const BenchPlan& plan) {
  FERRY_ASSIGN_OR_RETURN(const auto worker, PatternWorker::Create(node, plan));
  return worker->Run();
}

}  // namespace ferry::cli
