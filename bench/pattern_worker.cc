// SPDX-License-Identifier: Apache-2.0
// Runs all cases, in the same order at all nodes.
#include "bench/pattern_worker.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "bench/device.h"
#include "bench/floors.h"
#include "bench/flows.h"
#include "bench/paths.h"
#include "bench/raw_nccl.h"
#include "bench/rounds.h"
#include "bench/works.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Step ids from the first one plus this are used one per round by "steps"; other patterns use the
// first.
constexpr int64_t kFirstOwnStep = 1000;
constexpr int kMostKeysOfACase = 200'000;

class PatternWorker final {
 public:
  static absl::StatusOr<std::unique_ptr<PatternWorker>> Create(const BenchParticipants& party,
                                                               BenchSync& meeting,
                                                               const BenchPlan& plan) {
    FERRY_ASSIGN_OR_RETURN(Step step, party.node.OpenStep(party.first_step));
    FERRY_ASSIGN_OR_RETURN(auto device, BenchDevice::Open(party.node, plan.DeviceOf(party.rank),
                                                          plan.dtype, party.timeout));
    return std::unique_ptr<PatternWorker>(
        new PatternWorker(party, meeting, plan, std::move(step), std::move(device)));
  }

  absl::Status Run() {
    FERRY_RETURN_IF_ERROR(TellSpin());
    for (const size_t bytes : plan_.sizes) {
      FERRY_RETURN_IF_ERROR(TellFloors(bytes));
      for (const BenchMode mode : plan_.modes) {
        for (const int inflight : plan_.DepthsOf(bytes)) {
          for (const int batch : plan_.BatchesOf(inflight)) {
            FERRY_RETURN_IF_ERROR(RunCase({bytes, mode, inflight, batch}));
          }
        }
      }
      if (plan_.has_later_floors()) FERRY_RETURN_IF_ERROR(TellLaterFloors(bytes));
      // Blocks sized for this case are useless for the next one.
      party_.node.transfer_engine().arena().Trim();
    }
    return step_.Close(party_.timeout);
  }

 private:
  PatternWorker(const BenchParticipants& party, BenchSync& meeting, const BenchPlan& plan,
                Step step, std::unique_ptr<BenchDevice> device)
      : party_(party),
        meeting_(meeting),
        plan_(plan),
        device_(std::move(device)),
        side_{party, plan, *device_},
        sets_(FlowSetsOf(plan.pattern, party.size())),
        step_(std::move(step)),
        next_step_(party.first_step + kFirstOwnStep) {}

  bool is_keyed() const { return plan_.pattern == "keyed"; }
  bool is_steps() const { return plan_.pattern == "steps"; }

  // Reports the synchronisation overhead: spinning, between the first two, or an empty round.
  absl::Status TellSpin() {
    Json line = {{"event", "spin"}};
    if (!meeting_.is_on_one_machine()) {
      BenchRoundMembers all;
      all.ranks.resize(sets_.empty() ? 2 : party_.nodes.size());
      std::iota(all.ranks.begin(), all.ranks.end(), 0);
      FERRY_ASSIGN_OR_RETURN(line["empty_round_s"], MeasureEmptyRound(meeting_, all));
    } else if (party_.rank < 2) {
      FERRY_ASSIGN_OR_RETURN(const absl::Duration spin,
                             MeasureSpin(plan_.floor_file, party_.is_first()));
      line["spin_s"] = absl::ToDoubleSeconds(spin);
      FERRY_ASSIGN_OR_RETURN(const absl::Duration futex,
                             MeasureFutex(plan_.floor_file, party_.is_first()));
      line["futex_s"] = absl::ToDoubleSeconds(futex);
    }
    std::vector<std::pair<int, int>> flows;
    for (const BenchFlowSet& set : sets_) {
      for (const BenchFlow& flow : set.flows) flows.emplace_back(flow.src, flow.dst);
    }
    if (sets_.empty()) flows.emplace_back(0, 1);
    if (is_steps()) flows.emplace_back(1, 0);
    line["ways"] = PathsOfFlows(party_, plan_, flows);
    FERRY_RETURN_IF_ERROR(meeting_.Tell(line));
    return meeting_.AwaitAll();
  }

  // For the bytes received per round by the node that receives most.
  absl::Status TellFloors(size_t bytes) {
    Json floors = {{"event", "floors"}};
    size_t most = 1;
    for (const BenchFlowSet& set : sets_) most = std::max(most, set.MostReceived());
    const int rounds = std::clamp(plan_.IterationsOf(most * bytes), 3, 30);
    if (party_.is_first()) {
      FERRY_ASSIGN_OR_RETURN(Tensor from, MakeBenchTensor(party_.node, most * bytes));
      FERRY_ASSIGN_OR_RETURN(Tensor to, MakeBenchTensor(party_.node, most * bytes));
      WritePattern(from.mutable_data(), most * bytes, 1);
      WritePattern(to.mutable_data(), most * bytes, 2);
      floors["memcpy_s"] = absl::ToDoubleSeconds(
          MeasureMemcpy(to.mutable_data(), from.data(), most * bytes, rounds));
      floors["read_s"] = absl::ToDoubleSeconds(MeasureRead(from.data(), most * bytes, rounds));
    }
    if (party_.rank == FirstWithGpu()) {
      floors["gpu"] = plan_.DeviceOf(party_.rank);
      for (const bool is_from_host : {false, true}) {
        FERRY_ASSIGN_OR_RETURN(const absl::Duration copy,
                               device_->MeasureCopy(most * bytes, rounds, is_from_host));
        floors[is_from_host ? "gpu_pinned_s" : "gpu_copy_s"] = absl::ToDoubleSeconds(copy);
      }
    }
    FERRY_RETURN_IF_ERROR(meeting_.Tell(floors));
    return meeting_.AwaitAll();
  }

  // Measures NCCL itself on the communicator of earlier transfers, with as many tensors each way as
  // a row has; by their number. REQUIRES: two processes.
  absl::Status TellLaterFloors(size_t bytes) {
    Json exchanges = Json::object();
    const std::unique_ptr<RawNccl> raw =
        std::exchange(goes_by_nccl_, false) ? RawNccl::Find(party_, plan_, *device_) : nullptr;
    const int other = 1 - party_.rank;
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey out, party_.Key("agree", party_.rank, other));
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey in, party_.Key("agree", other, party_.rank));
    FERRY_ASSIGN_OR_RETURN(const bool is_there, AgreeOn(party_, step_, out, in, raw != nullptr));
    for (const int count : is_there ? plan_.DepthsOf(bytes) : std::vector<int>()) {
      // With several in flight, only "steps" has a baseline.
      if (count > 1 && !is_steps()) continue;
      const int rounds = std::clamp(plan_.IterationsOf(static_cast<size_t>(count) * bytes), 3, 30);
      FERRY_ASSIGN_OR_RETURN(const absl::Duration taken,
                             raw->MeasureExchange(bytes, count, rounds));
      exchanges[std::to_string(count)] = absl::ToDoubleSeconds(taken);
    }
    FERRY_RETURN_IF_ERROR(
        meeting_.Tell({{"event", "later floors"}, {"raw_nccl_s", std::move(exchanges)}}));
    return meeting_.AwaitAll();
  }

  // Returns -1 if there is none.
  int FirstWithGpu() const {
    for (int rank = 0; rank < party_.size(); ++rank) {
      if (plan_.DeviceOf(rank) != kHostDevice) return rank;
    }
    return -1;
  }

  // Explains the path of tensors from the node with rank `from`.
  std::string ReasonOf(int from, size_t bytes, const BenchRounds& rounds) const {
    const std::string& there = plan_.DeviceOf(from);
    const std::string& here = plan_.DeviceOf(party_.rank);
    return there == kHostDevice && here == kHostDevice
               ? PathReason(party_.node, party_.NodeOf(from), bytes, rounds.paths)
               : DevicePathReason(party_.node, party_.NodeOf(from), bytes, there, here);
  }

  int RoundsOf(const BenchWorkCase& at) const {
    // Each round uses all keys.
    if (is_keyed()) {
      const int fits = plan_.IterationsOf(at.bytes * static_cast<size_t>(plan_.keys));
      return plan_.iterations > 0 ? fits : std::clamp(kMostKeysOfACase / plan_.keys, 3, fits);
    }
    return is_steps() ? plan_.IterationsOf(at.bytes * static_cast<size_t>(at.inflight))
                      : plan_.RoundsOf(at.bytes, at.inflight);
  }

  absl::Status RunCase(const BenchWorkCase& at) {
    const int iterations = RoundsOf(at);
    const int warm_ups = at.inflight == 1 ? plan_.WarmUpsOf(at.bytes) : 1;
    if (is_keyed() || is_steps()) {
      absl::StatusOr<std::unique_ptr<BenchRoundWork>> work =
          is_keyed() ? MakeKeyedWork(side_, step_, at) : MakeStepsWork(side_, next_step_, at);
      FERRY_RETURN_IF_ERROR(work.status());
      next_step_ += warm_ups + iterations;
      return RunWork({{{0, 1}}, warm_ups, iterations}, **work, at, 1 - party_.rank);
    }
    for (const BenchFlowSet& set : sets_) {
      const std::vector<int> members = set.Members();
      if (std::find(members.begin(), members.end(), party_.rank) == members.end()) {
        FERRY_RETURN_IF_ERROR(meeting_.Tell({{"event", "case"}}));
        FERRY_RETURN_IF_ERROR(meeting_.AwaitAll());
        continue;
      }
      // Without a shared clock a one-way transfer cannot be timed: measure round trips.
      const bool is_ping = !set.pair.empty() && !meeting_.is_on_one_machine();
      FERRY_ASSIGN_OR_RETURN(const auto work, is_ping ? MakePingWork(side_, step_, set.flows[0], at)
                                                      : MakeFlowWork(side_, step_, set, at));
      int from = is_ping && set.flows[0].src == party_.rank ? set.flows[0].dst : -1;
      for (const BenchFlow& flow : set.flows) {
        if (flow.dst == party_.rank && from < 0) from = flow.src;
      }
      const BenchRoundMembers who = {
          is_ping ? std::vector<int>{set.flows[0].src, set.flows[0].dst} : members, is_ping};
      FERRY_RETURN_IF_ERROR(RunWork({who, warm_ups, iterations}, *work, at, from));
    }
    return absl::OkStatus();
  }

  // from: a node that sends to this one; -1: none.
  absl::Status RunWork(const BenchRoundCount& count, BenchRoundWork& work, const BenchWorkCase& at,
                       int from) {
    FERRY_ASSIGN_OR_RETURN(const BenchRounds rounds, RunRounds(meeting_, count, work));
    goes_by_nccl_ |= rounds.paths.contains(std::string(RawNccl::kPath));
    Json line = rounds.ToJson();
    line["event"] = "case";
    line["pages"] = DescribePages(party_.node.transfer_engine().arena_stats());
    if (from >= 0 && !rounds.paths.empty()) {
      line["path_reason"] = ReasonOf(from, at.bytes, rounds);
    }
    FERRY_RETURN_IF_ERROR(meeting_.Tell(line));
    // Wait, so that no node disturbs this case by starting the next one.
    return meeting_.AwaitAll();
  }

  const BenchParticipants& party_;
  BenchSync& meeting_;
  const BenchPlan& plan_;
  const std::unique_ptr<BenchDevice> device_;
  const BenchSide side_;
  const std::vector<BenchFlowSet> sets_;
  Step step_;
  int64_t next_step_;
  // Some transfer of this size used NCCL.
  bool goes_by_nccl_ = false;
};

}  // namespace

absl::Status RunPatternWorker(const BenchParticipants& party, BenchSync& meeting,
                              const BenchPlan& plan) {
  FERRY_ASSIGN_OR_RETURN(const auto worker, PatternWorker::Create(party, meeting, plan));
  return worker->Run();
}

}  // namespace ferry::cli
