// SPDX-License-Identifier: Apache-2.0
// StoreSync: the processes of a bench that are nodes of a job which is there already, on any
// machines.
#ifndef FERRY_BENCH_STORE_SYNC_H_
#define FERRY_BENCH_STORE_SYNC_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/meeting.h"
#include "bench/offer.h"
#include "bench/stage.h"
#include "coord/client/agent.h"

namespace ferry::cli {

// They share no memory and no clock: before and after a round they tell each other by tensors that
// say nothing, and the coordinator is asked between cases only. What they leave in its store lies
// under "ferry-bench/", in a place of this run's own, and is gone in the end. The first process has
// what all have told. Not thread-safe, but for Stop.
class StoreSync final : public BenchSync {
 public:
  //   own: of this node. nodes: all that take part, this one among them.
  //   stage: is told how far it is. It and `node` outlive this.
  StoreSync(Node& node, BenchProposal own, std::vector<int> nodes, absl::Duration timeout,
            BenchStage& stage);
  ~StoreSync() override;

  // Waits until all nodes have said what they are to measure, and that is the same.
  //   Errors: FAILED_PRECONDITION naming two that differ; DEADLINE_EXCEEDED naming who is missing.
  absl::Status Gather();
  // After Gather, which is also when whoever is gone begins to end every wait, here and below.
  const BenchParticipants& party() const { return party_; }

  // Waits for a call of the agent, or until it was stopped.
  //   Errors: those of the call; why it was stopped; DEADLINE_EXCEEDED.
  absl::Status Await(const std::function<void(coord::Agent::StatusCallback)>& call);

  // Ends what waits, here and below, with `why`. From any thread.
  void Stop(const absl::Status& why);
  // The end of the bench here, with how it went; the others are told of an error. Nothing of this
  // run is left in the store when the last of them has come here.
  //   Errors: that of `result`, or its cause elsewhere.
  absl::Status Finish(absl::Status result);
  // What all have told; nothing but at the first process.
  std::deque<std::vector<nlohmann::ordered_json>> TakeLines() { return std::move(lines_); }

  bool is_on_one_machine() const override { return false; }
  bool KeepsTime(const BenchRoundMembers& members) const override {
    return members.ranks[0] == party_.rank;
  }
  absl::StatusOr<BenchStart> Begin(const BenchRoundMembers& members) override;
  absl::StatusOr<absl::Time> End(const BenchRoundMembers& members) override;
  absl::Status AwaitAll() override;
  absl::Status Tell(const nlohmann::ordered_json& line) override;

 private:
  struct Shared;

  absl::Status AwaitOffers();
  absl::Status CheckOffers();
  absl::Status Missing(const std::vector<int>& nodes) const;
  bool DropStaleOffers(const std::vector<coord::TaskStatus>& tasks, bool differ);
  void WatchFailures();
  void WatchMembers(int64_t version);
  void OnMembers(const coord::NodeTable& table);
  absl::Status Signal(int rank);
  absl::Status AwaitSignal(int rank);
  absl::Status SignalAll(const BenchRoundMembers& members);
  absl::Status AwaitAllSignals(const BenchRoundMembers& members);
  absl::StatusOr<const RendezvousKey*> WordKey(int from, int to);
  std::string LineKey(int rank) const;

  const BenchProposal own_;
  BenchStage& stage_;
  CancellationToken stop_;
  BenchParticipants party_;
  // Also with callbacks that come late.
  const std::shared_ptr<Shared> shared_;
  // Of this run, in the store; empty before Gather.
  std::string prefix_;
  // Of the others, by node; constant after Gather.
  std::map<int, uint64_t> lives_;
  std::optional<Step> words_;
  std::map<std::pair<int, int>, RendezvousKey> word_keys_;
  int told_ = 0;
  std::deque<std::vector<nlohmann::ordered_json>> lines_;
  // They use the rest: they go first.
  std::unique_ptr<coord::AgentWatch> offers_watch_;
  std::unique_ptr<coord::AgentWatch> failures_watch_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_STORE_SYNC_H_
