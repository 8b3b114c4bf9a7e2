// SPDX-License-Identifier: Apache-2.0
// StoreSync: BenchSync for nodes of an existing job, on any machines.
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

// Participants share no memory and no clock: rounds are synchronised by empty tensors, and the
// coordinator is used only between cases. Keys in its store are under "ferry-bench/", in a prefix
// of this run, and are removed at the end. The first process collects all results. Not thread-safe,
// except Stop.
class StoreSync final : public BenchSync {
 public:
  //   own: this node's proposal. nodes: all participants, including this one.
  //   stage: receives progress. It and `node` must outlive this.
  StoreSync(Node& node, BenchProposal own, std::vector<int> nodes, absl::Duration timeout,
            BenchStage& stage);
  ~StoreSync() override;

  // Blocks until all nodes have published equal proposals.
  //   Errors: FAILED_PRECONDITION naming two that differ; DEADLINE_EXCEEDED naming the missing
  //   nodes.
  absl::Status Gather();
  // Valid after Gather. From then on, here and below, the loss of a node ends every wait.
  const BenchParticipants& party() const { return party_; }

  // Blocks until a call of the agent completes, or the bench is stopped.
  //   Errors: those of the call; why it was stopped; DEADLINE_EXCEEDED.
  absl::Status Await(const std::function<void(coord::Agent::StatusCallback)>& call);

  // Ends all waits with `why`. Callable from any thread.
  void Stop(const absl::Status& why);
  // Ends the bench on this node with `result`; reports an error to the others. Once all nodes have
  // called it, nothing of this run is left in the store.
  //   Errors: that of `result`, or its cause on another node.
  absl::Status Finish(absl::Status result);
  // Returns all results; empty except at the first process.
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
  // Shared with late callbacks.
  const std::shared_ptr<Shared> shared_;
  // This run's prefix in the store; empty before Gather.
  std::string prefix_;
  // Incarnations of the other nodes; constant after Gather.
  std::map<int, uint64_t> lives_;
  std::optional<Step> words_;
  std::map<std::pair<int, int>, RendezvousKey> word_keys_;
  int told_ = 0;
  std::deque<std::vector<nlohmann::ordered_json>> lines_;
  // Declared last, because their callbacks use the rest.
  std::unique_ptr<coord::AgentWatch> offers_watch_;
  std::unique_ptr<coord::AgentWatch> failures_watch_;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_STORE_SYNC_H_
