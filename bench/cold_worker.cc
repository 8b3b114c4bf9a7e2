// SPDX-License-Identifier: Apache-2.0
// One step, from the first message to its end.
#include "bench/cold_worker.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "bench/device.h"
#include "bench/rounds.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

constexpr char kHandshake[] = "handshake";
constexpr char kMatch[] = "match";
constexpr char kRegistration[] = "registration";
constexpr char kHandoff[] = "handoff";
constexpr char kRead[] = "read";
constexpr char kCopy[] = "copy";
constexpr char kNotify[] = "notify";

// Small enough to be sent inline with the response (eager).
constexpr size_t kSmallBytes = 8;
// Too large to be sent inline by any transport; a multiple of every element size.
constexpr size_t kRegisteredBytes = size_t{256} << 10;

// Node 0 sends, node 1 receives. Untimed work is done in Prepare.
class ColdWork final : public BenchRoundWork {
 public:
  static absl::StatusOr<std::unique_ptr<ColdWork>> Create(const BenchParticipants& party,
                                                          const BenchPlan& plan) {
    FERRY_ASSIGN_OR_RETURN(Step step, party.node.OpenStep(party.first_step));
    FERRY_ASSIGN_OR_RETURN(RendezvousKey small, party.Key("small", 0, 1));
    FERRY_ASSIGN_OR_RETURN(RendezvousKey key,
                           party.node.Key("bench", party.NodeOf(0), party.NodeOf(1),
                                          plan.DeviceOf(0), plan.DeviceOf(1)));
    FERRY_ASSIGN_OR_RETURN(auto device, BenchDevice::Open(party.node, plan.DeviceOf(party.rank),
                                                          plan.dtype, party.timeout));
    return std::unique_ptr<ColdWork>(new ColdWork(party, plan, std::move(step), std::move(small),
                                                  std::move(key), std::move(device)));
  }

  void Enter(const std::string& phase) { phase_ = phase; }

  std::string Reason(const BenchRounds& rounds) const {
    if (rounds.paths.empty()) return "";
    const int from = party_.NodeOf(0);
    return is_small() || !plan_.uses_gpus()
               ? PathReason(party_.node, from, size(), rounds.paths)
               : DevicePathReason(party_.node, from, size(), plan_.DeviceOf(0), plan_.DeviceOf(1));
  }

 private:
  ColdWork(const BenchParticipants& party, const BenchPlan& plan, Step step, RendezvousKey small,
           RendezvousKey key, std::unique_ptr<BenchDevice> device)
      : party_(party),
        plan_(plan),
        bytes_(plan.sizes.at(0)),
        step_(std::move(step)),
        small_(std::move(small)),
        key_(std::move(key)),
        device_(std::move(device)) {}

  bool is_sender() const { return party_.is_first(); }
  // Phases that use host memory, whatever the devices are.
  bool is_small() const { return phase_ == kHandshake || phase_ == kMatch; }
  bool is_transfer() const { return phase_ != kRead && phase_ != kNotify; }
  size_t size() const {
    if (is_small()) return kSmallBytes;
    return phase_ == kRegistration ? std::min(bytes_, kRegisteredBytes) : bytes_;
  }
  // All phases with large transfers send the same tensor.
  uint64_t seed() const {
    return is_small() ? PatternSeed(phase_, kSmallBytes) : PatternSeed("cold", bytes_);
  }

  absl::Status Prepare(int) override {
    if (!is_transfer()) return absl::OkStatus();
    if (!is_sender()) {
      if (phase_ != kCopy) return absl::OkStatus();
      FERRY_ASSIGN_OR_RETURN(into_, device_->MakePattern(bytes_, 0));
      return absl::OkStatus();
    }
    if (is_small()) {
      FERRY_ASSIGN_OR_RETURN(sent_, MakeBenchTensor(party_.node, kSmallBytes));
      WritePattern(sent_.mutable_data(), kSmallBytes, seed());
      return absl::OkStatus();
    }
    if (!whole_.is_valid()) {
      FERRY_ASSIGN_OR_RETURN(whole_, device_->MakePattern(bytes_, seed()));
    }
    sent_ = whole_;
    if (phase_ != kRegistration) return absl::OkStatus();
    // A slice: the peer must still map the whole allocation that it is part of.
    FERRY_ASSIGN_OR_RETURN(sent_,
                           whole_.Slice(0, static_cast<int64_t>(size() / plan_.element_bytes)));
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (phase_ == kNotify) return step_.Close(party_.timeout);
    const RendezvousKey& key = is_small() ? small_ : key_;
    if (is_transfer() && is_sender()) return step_.Send(key, std::move(sent_));
    if (is_transfer()) {
      posted_ = PostReceive(party_.node, step_, key, std::exchange(into_, Tensor()));
      FERRY_RETURN_IF_ERROR(AwaitReceive(party_, 0, *posted_));
      return device_->AwaitBytes(posted_->received.tensor);
    }
    if (!is_sender()) {
      const Tensor& tensor = posted_->received.tensor;
      asm volatile("" : : "r"(ReadEveryByte(tensor.data(), tensor.bytes())) : "memory");
    }
    return absl::OkStatus();
  }

  absl::Status Check(int, BenchRounds& rounds) override {
    // Release the exported memory before the step ends.
    if (phase_ == kCopy) whole_ = Tensor();
    if (is_sender() || phase_ == kNotify) return absl::OkStatus();
    rounds.paths.insert(std::string(posted_->received.path));
    // Verifying a zero-copy tensor would be its first read, which belongs to the read phase.
    if (phase_ == kHandoff && !plan_.uses_gpus()) return absl::OkStatus();
    const Tensor& tensor = posted_->received.tensor;
    if (is_small()) {
      rounds.errors += CountTensorErrors(tensor, kSmallBytes, seed());
    } else {
      FERRY_ASSIGN_OR_RETURN(const size_t errors, device_->CountErrors(tensor, size(), seed()));
      rounds.errors += errors;
    }
    posted_ = nullptr;
    return absl::OkStatus();
  }

  const BenchParticipants& party_;
  const BenchPlan& plan_;
  const size_t bytes_;
  Step step_;
  const RendezvousKey small_;
  const RendezvousKey key_;
  const std::unique_ptr<BenchDevice> device_;
  std::string phase_;
  // Sender: the whole tensor, and the one to send next.
  Tensor whole_;
  Tensor sent_;
  // Receiver: the destination.
  Tensor into_;
  BenchPostedPtr posted_;
};

}  // namespace

std::vector<std::string> ColdPhasesOf(const BenchPlan& plan) {
  std::vector<std::string> phases = {kHandshake, kMatch, kRegistration, kHandoff};
  // The host does not read a GPU's tensor.
  if (!plan.uses_gpus()) phases.emplace_back(kRead);
  phases.insert(phases.end(), {kCopy, kNotify});
  return phases;
}

absl::Status RunColdWorker(const BenchParticipants& party, BenchSync& meeting,
                           const BenchPlan& plan) {
  FERRY_ASSIGN_OR_RETURN(const auto work, ColdWork::Create(party, plan));
  for (const std::string& phase : ColdPhasesOf(plan)) {
    work->Enter(phase);
    FERRY_ASSIGN_OR_RETURN(const BenchRounds rounds, RunRounds(meeting, {{{0, 1}}, 0, 1}, *work));
    nlohmann::ordered_json line = rounds.ToJson();
    line["event"] = "case";
    line["pages"] = DescribePages(party.node.transfer_engine().arena_stats());
    line["path_reason"] = work->Reason(rounds);
    FERRY_RETURN_IF_ERROR(meeting.Tell(line));
  }
  return absl::OkStatus();
}

}  // namespace ferry::cli
