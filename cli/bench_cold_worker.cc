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

constexpr int64_t kColdStep = 1;
// What is small enough to come with the answer.
constexpr size_t kColdSmallBytes = 8;
constexpr int kColdRoundsPage = 1;

// Node 0 sends, node 1 receives. What is not part of a phase is done before it.
class ColdWork final : public BenchRoundWork {
 public:
  ColdWork(Node& node, Step step, RendezvousKey key, size_t bytes)
      : node_(node), step_(std::move(step)), key_(std::move(key)), bytes_(bytes) {}

  void Enter(const std::string& phase) { phase_ = phase; }

 private:
  bool is_sender() const { return node_.node_id() == 0; }
  bool is_transfer() const {
    return phase_ == "connect" || phase_ == "match" || phase_ == "handoff";
  }
  size_t size() const { return phase_ == "handoff" ? bytes_ : kColdSmallBytes; }
  uint64_t seed() const { return PatternSeed(phase_, size()); }

  absl::Status Prepare(int) override {
    if (!is_sender() || !is_transfer()) return absl::OkStatus();
    FERRY_ASSIGN_OR_RETURN(sent_, MakeBenchTensor(node_, size()));
    WritePattern(sent_.mutable_data(), size(), seed());
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (phase_ == "close") return step_.Close(kBenchPeerPatience);
    if (is_transfer() && is_sender()) return step_.Send(key_, std::move(sent_));
    if (is_transfer()) {
      posted_ = PostReceive(node_, step_, key_, Tensor());
      return AwaitReceive(node_, *posted_);
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

  Node& node_;
  Step step_;
  const RendezvousKey key_;
  const size_t bytes_;
  std::string phase_;
  Tensor sent_;
  BenchPostedPtr posted_;
  uint64_t handoff_seed_ = 0;
};

}  // namespace

absl::Status RunColdWorker(Node& node, const BenchPlan& plan) {
  const size_t bytes = plan.sizes.at(0);
  FERRY_ASSIGN_OR_RETURN(const auto barrier, PageBarrier::Map(plan.floor_file, kColdRoundsPage));
  FERRY_ASSIGN_OR_RETURN(Step step, node.OpenStep(kColdStep));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey key, node.Key("bench", 0, 1));
  ColdWork work(node, std::move(step), std::move(key), bytes);
  for (const char* const phase : kColdPhases) {
    work.Enter(phase);
    FERRY_ASSIGN_OR_RETURN(const BenchRounds rounds, RunRounds(*barrier, {2, 0, 1}, work));
    nlohmann::ordered_json line = rounds.ToJson();
    line["event"] = "case";
    line["pages"] = DescribePages(node.exchange().arena_stats());
    if (!rounds.paths.empty()) line["path_reason"] = PathReason(node, 0, bytes, rounds.paths);
    TellBench(line);
  }
  return node.Shutdown();
}

}  // namespace ferry::cli
