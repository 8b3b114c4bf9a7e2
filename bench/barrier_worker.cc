// SPDX-License-Identifier: Apache-2.0
// Timed passages, each followed by a verified one.
#include "bench/barrier_worker.h"

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "bench/rounds.h"

namespace ferry::cli {
namespace {

constexpr int kJoinedWarmUps = 3;

class BarrierWork final : public BenchRoundWork {
 public:
  explicit BarrierWork(StoreSync& meeting)
      : meeting_(meeting),
        party_(meeting.party()),
        barrier_(absl::StrCat(party_.store_prefix, "/passage")),
        came_(absl::StrCat(party_.store_prefix, "/came/")) {}

 private:
  std::string KeyOf(int round, int rank) const { return absl::StrCat(came_, round, "/", rank); }

  absl::Status Pass() {
    return meeting_.Await([this](coord::Agent::StatusCallback done) {
      party_.node.agent().BarrierAsync(barrier_, party_.timeout, party_.nodes, std::move(done));
    });
  }

  absl::Status AwaitOthers(int round) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < party_.size(); ++rank) {
      if (rank != party_.rank) keys.push_back(KeyOf(round, rank));
    }
    return meeting_.Await([this, &keys](coord::Agent::StatusCallback done) {
      party_.node.agent().GetAllAsync(
          keys, party_.timeout,
          [done = std::move(done)](const absl::StatusOr<std::vector<std::string>>& found) mutable {
            std::move(done)(found.status());
          });
    });
  }

  absl::Status Prepare(int) override { return absl::OkStatus(); }
  absl::Status Run() override { return Pass(); }

  absl::Status Check(int round, BenchRounds& rounds) override {
    coord::Agent& agent = party_.node.agent();
    const int last = round % party_.size();
    if (party_.rank == last) {
      FERRY_RETURN_IF_ERROR(AwaitOthers(round));
      // All nodes are done with the previous round's keys.
      FERRY_RETURN_IF_ERROR(agent.Delete(absl::StrCat(came_, round - 1), /*subtree=*/true));
    }
    FERRY_RETURN_IF_ERROR(agent.Set(KeyOf(round, party_.rank), "comes"));
    FERRY_RETURN_IF_ERROR(Pass());
    const absl::StatusOr<std::string> has_come = agent.TryGet(KeyOf(round, last));
    if (absl::IsNotFound(has_come.status())) {
      ++rounds.errors;
    } else {
      FERRY_RETURN_IF_ERROR(has_come.status());
    }
    rounds.paths.insert("control stream");
    return absl::OkStatus();
  }

  StoreSync& meeting_;
  const BenchParticipants& party_;
  const std::string barrier_;
  // Prefix of the keys by which nodes announce that they enter a verified barrier.
  const std::string came_;
};

}  // namespace

absl::Status RunBarrierWorker(StoreSync& meeting, const BenchPlan& plan) {
  const BenchParticipants& party = meeting.party();
  BenchRoundMembers all;
  all.ranks.resize(party.nodes.size());
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  FERRY_ASSIGN_OR_RETURN(const double empty_round_s, MeasureEmptyRound(meeting, all));
  FERRY_RETURN_IF_ERROR(meeting.Tell({{"event", "spin"}, {"empty_round_s", empty_round_s}}));
  FERRY_RETURN_IF_ERROR(meeting.AwaitAll());
  BarrierWork work(meeting);
  FERRY_ASSIGN_OR_RETURN(const BenchRounds rounds,
                         RunRounds(meeting, {all, kJoinedWarmUps, plan.iterations}, work));
  nlohmann::ordered_json line = rounds.ToJson();
  line["event"] = "case";
  FERRY_RETURN_IF_ERROR(meeting.Tell(line));
  FERRY_RETURN_IF_ERROR(meeting.AwaitAll());
  if (!party.is_first()) return absl::OkStatus();
  return party.node.agent().Delete(absl::StrCat(party.store_prefix, "/came"), /*subtree=*/true);
}

}  // namespace ferry::cli
