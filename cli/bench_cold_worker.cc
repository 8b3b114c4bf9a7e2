// SPDX-License-Identifier: Apache-2.0
// One step, from the first message to its end.
#include "cli/bench_cold_worker.h"

#include <functional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "cli/bench_rounds.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

// What is small enough to come with the answer.
constexpr size_t kColdSmallBytes = 8;

// Node 0 sends, node 1 receives. What is not part of a phase is done before it.
class ColdWork final : public BenchRoundWork {
 public:
  ColdWork(const BenchParty& party, Step step, RendezvousKey key, size_t bytes)
      : party_(party), step_(std::move(step)), key_(std::move(key)), bytes_(bytes) {}

  void Enter(const std::string& phase) { phase_ = phase; }

 private:
  bool is_sender() const { return party_.is_first(); }
  bool is_transfer() const {
    return phase_ == "connect" || phase_ == "match" || phase_ == "handoff";
  }
  size_t size() const { return phase_ == "handoff" ? bytes_ : kColdSmallBytes; }
  uint64_t seed() const { return PatternSeed(phase_, size()); }

  absl::Status Prepare(int) override {
    if (!is_sender() || !is_transfer()) return absl::OkStatus();
    FERRY_ASSIGN_OR_RETURN(sent_, MakeBenchTensor(party_.node, size()));
    WritePattern(sent_.mutable_data(), size(), seed());
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (phase_ == "close") return step_.Close(party_.patience);
    if (is_transfer() && is_sender()) return step_.Send(key_, std::move(sent_));
    if (is_transfer()) {
      posted_ = PostReceive(party_.node, step_, key_, Tensor());
      return AwaitReceive(party_, 0, *posted_);
    }
    if (!is_sender()) {
      const Tensor& tensor = posted_->received.tensor;
      asm volatile("" : : "r"(ReadEveryByte(tensor.data(), tensor.bytes())) : "memory");
    }
    return absl::OkStatus();
  }

  absl::Status Check(int, BenchRounds& rounds) override {
    if (is_sender() || phase_ == "close") return absl::OkStatus();
    rounds.paths.insert(std::string(posted_->received.path));
    // Comparing what was handed over would be its first reading: that waits for the phase of it.
    if (phase_ == "handoff") {
      handoff_seed_ = seed();
    } else if (phase_ == "read") {
      rounds.errors += CountTensorErrors(posted_->received.tensor, bytes_, handoff_seed_);
      posted_ = nullptr;
    } else {
      rounds.errors += CountTensorErrors(posted_->received.tensor, size(), seed());
      posted_ = nullptr;
    }
    return absl::OkStatus();
  }

  const BenchParty& party_;
  Step step_;
  const RendezvousKey key_;
  const size_t bytes_;
  std::string phase_;
  Tensor sent_;
  BenchPostedPtr posted_;
  uint64_t handoff_seed_ = 0;
};

}  // namespace

absl::Status RunColdWorker(const BenchParty& party, BenchMeeting& meeting, const BenchPlan& plan) {
  const size_t bytes = plan.sizes.at(0);
  FERRY_ASSIGN_OR_RETURN(Step step, party.node.OpenStep(party.first_step));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey key, party.Key("bench", 0, 1));
  ColdWork work(party, std::move(step), std::move(key), bytes);
  for (const char* const phase : kColdPhases) {
    work.Enter(phase);
    FERRY_ASSIGN_OR_RETURN(const BenchRounds rounds, RunRounds(meeting, {{{0, 1}}, 0, 1}, work));
    nlohmann::ordered_json line = rounds.ToJson();
    line["event"] = "case";
    line["pages"] = DescribePages(party.node.exchange().arena_stats());
    if (!rounds.paths.empty()) line["path_reason"] = PathReason(party.node, 0, bytes, rounds.paths);
    FERRY_RETURN_IF_ERROR(meeting.Tell(line));
  }
  return absl::OkStatus();
}

}  // namespace ferry::cli
