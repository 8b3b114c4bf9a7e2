// SPDX-License-Identifier: Apache-2.0
// Ping-pong, and streams of many pings.
#include "bench/sendrecv_worker.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/device.h"
#include "bench/paths.h"
#include "bench/processes.h"
#include "bench/raw_nccl.h"
#include "bench/rounds.h"
#include "bench/sendrecv_floors.h"
#include "bench/sent_words.h"
#include "bench/times.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// From this size on a buffer is reused only after its last reader has released it.
constexpr size_t kLargeBytes = size_t{1} << 20;

// The case of one row: size, mode and number in flight.
struct Case {
  size_t bytes = 0;
  BenchMode mode = BenchMode::kHandoff;
  int inflight = 1;
  int warm_ups = 0;
  int iterations = 0;
};

struct CaseResult {
  std::vector<absl::Duration> samples;
  size_t errors = 0;
  std::set<std::string> paths;
  // CPU time of this process, and bytes moved by both meanwhile.
  double cpu_s = 0;
  double moved_bytes = 0;
};

// Node 0 sends a ping and waits for the pong; node 1 answers.
class Peer final {
 public:
  static absl::StatusOr<std::unique_ptr<Peer>> Create(const BenchParticipants& party,
                                                      BenchSync& meeting, const BenchPlan& plan);

  absl::Status Run();

 private:
  Peer(const BenchParticipants& party, BenchSync& meeting, const BenchPlan& plan, Step step,
       std::vector<RendezvousKey> out, std::vector<RendezvousKey> in, RendezvousKey control_out,
       RendezvousKey control_in)
      : party_(party),
        meeting_(meeting),
        plan_(plan),
        is_first_(party.is_first()),
        step_(std::move(step)),
        out_(std::move(out)),
        in_(std::move(in)),
        control_out_(std::move(control_out)),
        control_in_(std::move(control_in)) {}

  // Sends an untimed signal to the other side.
  absl::Status Signal();
  absl::Status AwaitSignal();

  uint64_t SeedOf(const Case& at, int node, int round) const;
  // Names are used in turns.
  const RendezvousKey& Out(int index) const {
    return out_[static_cast<size_t>(index) % out_.size()];
  }
  const RendezvousKey& In(int index) const { return in_[static_cast<size_t>(index) % in_.size()]; }
  // With receives that are posted late: tells the other side that tensors have been sent, and waits
  // for that.
  void TellSent();
  absl::Status AwaitSent();
  // Waits for the tensor, and reads it if the mode requires that.
  absl::Status Take(const Case& at, BenchPosted& posted);
  absl::Status RunSize(size_t bytes);
  absl::StatusOr<CaseResult> RunCase(const Case& at);
  absl::Status RunRound(const Case& at, int round, const Tensor& into, CaseResult& result);
  absl::Status RunBatch(const Case& at, int round, CaseResult& result);
  absl::Status Verify(const Case& at, int round, const Received& received, CaseResult& result);
  std::string ReasonOf(size_t bytes, const CaseResult& result) const;

  const BenchParticipants& party_;
  BenchSync& meeting_;
  const BenchPlan& plan_;
  const bool is_first_;
  Step step_;
  const std::vector<RendezvousKey> out_;
  const std::vector<RendezvousKey> in_;
  const RendezvousKey control_out_;
  const RendezvousKey control_in_;
  std::unique_ptr<BenchDevice> device_;
  std::unique_ptr<SendRecvFloors> floors_;
  // Null if receives are posted first.
  std::unique_ptr<SentWords> sent_;
};

absl::StatusOr<std::unique_ptr<Peer>> Peer::Create(const BenchParticipants& party,
                                                   BenchSync& meeting, const BenchPlan& plan) {
  const int self = party.rank;
  const int other = 1 - self;
  FERRY_ASSIGN_OR_RETURN(Step step, party.node.OpenStep(party.first_step));
  std::vector<RendezvousKey> out;
  std::vector<RendezvousKey> in;
  for (int i = 0; i < plan.keys; ++i) {
    const auto key = [&, name = plan.keys == 1 ? "bench" : absl::StrCat("bench-", i)](int from,
                                                                                      int to) {
      return party.node.Key(name, party.NodeOf(from), party.NodeOf(to), plan.DeviceOf(from),
                            plan.DeviceOf(to));
    };
    FERRY_ASSIGN_OR_RETURN(RendezvousKey there, key(self, other));
    FERRY_ASSIGN_OR_RETURN(RendezvousKey back, key(other, self));
    out.push_back(std::move(there));
    in.push_back(std::move(back));
  }
  FERRY_ASSIGN_OR_RETURN(RendezvousKey control_out, party.Key("control", self, other));
  FERRY_ASSIGN_OR_RETURN(RendezvousKey control_in, party.Key("control", other, self));
  std::unique_ptr<Peer> peer(new Peer(party, meeting, plan, std::move(step), std::move(out),
                                      std::move(in), std::move(control_out),
                                      std::move(control_in)));
  FERRY_ASSIGN_OR_RETURN(
      peer->device_, BenchDevice::Open(party.node, plan.DeviceOf(self), plan.dtype, party.timeout));
  if (plan.is_unexpected) {
    FERRY_ASSIGN_OR_RETURN(peer->sent_, SentWords::Map(plan.floor_file, party));
  }
  return peer;
}

void Peer::TellSent() {
  if (sent_ != nullptr) sent_->Tell();
}

absl::Status Peer::AwaitSent() { return sent_ == nullptr ? absl::OkStatus() : sent_->Await(); }

absl::Status Peer::Signal() { return SendWord(step_, control_out_); }

absl::Status Peer::AwaitSignal() { return AwaitWord(party_, 1 - party_.rank, step_, control_in_); }

uint64_t Peer::SeedOf(const Case& at, int node, int round) const {
  return PatternSeed(absl::StrCat(node, BenchModeName(at.mode), at.inflight), at.bytes,
                     static_cast<uint64_t>(round));
}

absl::Status Peer::Verify(const Case& at, int round, const Received& received, CaseResult& result) {
  result.paths.insert(std::string(received.path));
  FERRY_ASSIGN_OR_RETURN(
      const size_t errors,
      device_->CountErrors(received.tensor, at.bytes, SeedOf(at, 1 - party_.rank, round)));
  result.errors += errors;
  return absl::OkStatus();
}

absl::Status Peer::Take(const Case& at, BenchPosted& posted) {
  FERRY_RETURN_IF_ERROR(AwaitReceive(party_, 1 - party_.rank, posted));
  FERRY_RETURN_IF_ERROR(device_->AwaitBytes(posted.received.tensor));
  if (at.mode == BenchMode::kRead) {
    const Tensor& tensor = posted.received.tensor;
    asm volatile("" : : "r"(ReadEveryByte(tensor.data(), tensor.bytes())) : "memory");
  }
  return absl::OkStatus();
}

// One ping and one pong. Only the part between the two clock readings is measured.
absl::Status Peer::RunRound(const Case& at, int round, const Tensor& into, CaseResult& result) {
  FERRY_ASSIGN_OR_RETURN(Tensor tensor,
                         device_->MakePattern(at.bytes, SeedOf(at, party_.rank, round)));
  BenchPostedPtr posted;
  const auto post = [&] { posted = PostReceive(party_.node, step_, In(round), into); };
  const auto take = [&]() -> absl::Status {
    FERRY_RETURN_IF_ERROR(AwaitSent());
    if (posted == nullptr) post();
    return Take(at, *posted);
  };
  const auto send = [&]() -> absl::Status {
    FERRY_RETURN_IF_ERROR(step_.Send(Out(round), std::move(tensor)));
    TellSent();
    return absl::OkStatus();
  };
  if (sent_ == nullptr) post();
  double cpu_before = 0;
  if (is_first_) {
    // Two exchanges, so that neither side has just woken up: verifying a large tensor takes longer
    // than the peer spins.
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    FERRY_RETURN_IF_ERROR(Signal());
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    cpu_before = OwnCpuSeconds();
    const absl::Time start = SteadyClock().Now();
    FERRY_RETURN_IF_ERROR(send());
    FERRY_RETURN_IF_ERROR(take());
    const absl::Duration taken = SteadyClock().Now() - start;
    if (round >= at.warm_ups) result.samples.push_back(taken / 2);
  } else {
    FERRY_RETURN_IF_ERROR(Signal());
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    FERRY_RETURN_IF_ERROR(Signal());
    cpu_before = OwnCpuSeconds();
    FERRY_RETURN_IF_ERROR(take());
    FERRY_RETURN_IF_ERROR(send());
  }
  if (round >= at.warm_ups) {
    result.cpu_s += OwnCpuSeconds() - cpu_before;
    result.moved_bytes += 2 * static_cast<double>(at.bytes);
  }
  FERRY_RETURN_IF_ERROR(Verify(at, round, posted->received, result));
  posted->received = Received();
  if (at.bytes < kLargeBytes) return absl::OkStatus();
  FERRY_RETURN_IF_ERROR(Signal());
  return AwaitSignal();
}

// Many pings, all sent before the one pong that answers the last.
absl::Status Peer::RunBatch(const Case& at, int round, CaseResult& result) {
  const int base = round * at.inflight;
  if (is_first_) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < at.inflight; ++i) {
      FERRY_ASSIGN_OR_RETURN(Tensor tensor,
                             device_->MakePattern(at.bytes, SeedOf(at, 0, base + i)));
      tensors.push_back(std::move(tensor));
    }
    FERRY_RETURN_IF_ERROR(AwaitSignal());
    // Requested before the pings: the receiver may be done with them before a request that follows
    // them has arrived, and while it verifies them it serves no request.
    const BenchPostedPtr pong = PostReceive(party_.node, step_, control_in_, Tensor());
    const double cpu_before = OwnCpuSeconds();
    const absl::Time start = SteadyClock().Now();
    int index = base;
    for (Tensor& tensor : tensors) {
      FERRY_RETURN_IF_ERROR(step_.Send(Out(index++), std::move(tensor)));
    }
    TellSent();
    FERRY_RETURN_IF_ERROR(AwaitReceive(party_, 1 - party_.rank, *pong));
    const absl::Duration taken = SteadyClock().Now() - start;
    if (round >= at.warm_ups) {
      result.samples.push_back(taken / at.inflight);
      result.cpu_s += OwnCpuSeconds() - cpu_before;
      result.moved_bytes += static_cast<double>(at.bytes) * at.inflight;
    }
    return AwaitSignal();
  }
  std::vector<Tensor> into(static_cast<size_t>(at.inflight));
  for (Tensor& each : into) {
    if (at.mode != BenchMode::kInto) continue;
    FERRY_ASSIGN_OR_RETURN(each, device_->Make(at.bytes));
  }
  std::vector<BenchPostedPtr> all;
  const auto post = [&] {
    for (int i = 0; i < at.inflight; ++i) {
      all.push_back(PostReceive(party_.node, step_, In(base + i), into[static_cast<size_t>(i)]));
    }
  };
  if (sent_ == nullptr) post();
  FERRY_RETURN_IF_ERROR(Signal());
  const double cpu_before = OwnCpuSeconds();
  FERRY_RETURN_IF_ERROR(AwaitSent());
  if (sent_ != nullptr) post();
  for (const BenchPostedPtr& posted : all) FERRY_RETURN_IF_ERROR(Take(at, *posted));
  FERRY_RETURN_IF_ERROR(Signal());
  if (round >= at.warm_ups) result.cpu_s += OwnCpuSeconds() - cpu_before;
  for (int i = 0; i < at.inflight; ++i) {
    FERRY_RETURN_IF_ERROR(Verify(at, base + i, all[i]->received, result));
  }
  all.clear();
  return Signal();
}

absl::StatusOr<CaseResult> Peer::RunCase(const Case& at) {
  CaseResult result;
  Tensor into;
  if (at.mode == BenchMode::kInto && at.inflight == 1) {
    FERRY_ASSIGN_OR_RETURN(into, device_->MakePattern(at.bytes, 0));
  }
  for (int round = 0; round < at.warm_ups + at.iterations; ++round) {
    FERRY_RETURN_IF_ERROR(at.inflight == 1 ? RunRound(at, round, into, result)
                                           : RunBatch(at, round, result));
    // The first tensors are requested while there is no connection.
    if (round < at.warm_ups) result.paths.clear();
  }
  return result;
}

absl::Status Peer::RunSize(size_t bytes) {
  Json floors = {{"event", "floors"}, {"bytes", bytes}};
  FERRY_RETURN_IF_ERROR(floors_->Measure(bytes, floors));
  FERRY_RETURN_IF_ERROR(meeting_.Tell(floors));
  const std::vector<int> depths = plan_.DepthsOf(bytes);
  bool goes_by_nccl = false;
  for (const BenchMode mode : plan_.modes) {
    for (const int depth : depths) {
      const Case at{bytes, mode, depth, depth == 1 ? plan_.WarmUpsOf(bytes) : 1,
                    plan_.RoundsOf(bytes, depth)};
      FERRY_ASSIGN_OR_RETURN(const CaseResult result, RunCase(at));
      goes_by_nccl |= result.paths.contains(std::string(RawNccl::kPath));
      const BenchTimes times = SummarizeTimes(result.samples);
      FERRY_RETURN_IF_ERROR(
          meeting_.Tell({{"event", "case"},
                         {"bytes", bytes},
                         {"mode", BenchModeName(mode)},
                         {"inflight", depth},
                         {"count", at.iterations * depth},
                         {"p50_s", absl::ToDoubleSeconds(times.p50)},
                         {"p90_s", absl::ToDoubleSeconds(times.p90)},
                         {"p99_s", absl::ToDoubleSeconds(times.p99)},
                         {"p999_s", absl::ToDoubleSeconds(times.p999)},
                         {"p50_low_s", absl::ToDoubleSeconds(times.p50_low)},
                         {"p50_high_s", absl::ToDoubleSeconds(times.p50_high)},
                         {"cpu_s", result.cpu_s},
                         {"moved_bytes", result.moved_bytes},
                         {"path", absl::StrJoin(result.paths, "+")},
                         {"path_reason", ReasonOf(bytes, result)},
                         {"pages", DescribePages(party_.node.transfer_engine().arena_stats())},
                         {"errors", result.errors}}));
    }
  }
  if (plan_.has_later_floors()) {
    Json later = {{"event", "later floors"}, {"bytes", bytes}};
    const auto agree = [this, goes_by_nccl](bool own) {
      return AgreeOn(party_, step_, control_out_, control_in_, own && goes_by_nccl);
    };
    FERRY_RETURN_IF_ERROR(floors_->MeasureNccl(bytes, agree, later));
    FERRY_RETURN_IF_ERROR(meeting_.Tell(later));
  }
  // Blocks sized for this case are useless for the next one.
  party_.node.transfer_engine().arena().Trim();
  return absl::OkStatus();
}

std::string Peer::ReasonOf(size_t bytes, const CaseResult& result) const {
  const int from = party_.NodeOf(1 - party_.rank);
  return plan_.uses_gpus()
             ? DevicePathReason(party_.node, from, bytes, plan_.DeviceOf(1 - party_.rank),
                                plan_.DeviceOf(party_.rank))
             : PathReason(party_.node, from, bytes, result.paths);
}

absl::Status Peer::Run() {
  Json machine = {{"event", "spin"}};
  floors_ = std::make_unique<SendRecvFloors>(party_, meeting_, plan_, *device_);
  FERRY_RETURN_IF_ERROR(floors_->MeasureMachine(machine));
  machine["ways"] = PathsOfFlows(party_, plan_, {{0, 1}, {1, 0}});
  FERRY_RETURN_IF_ERROR(meeting_.Tell(machine));
  for (const size_t bytes : plan_.sizes) FERRY_RETURN_IF_ERROR(RunSize(bytes));
  FERRY_RETURN_IF_ERROR(floors_->CleanUp());
  return step_.Close(party_.timeout);
}

}  // namespace

absl::Status RunSendRecvWorker(const BenchParticipants& party, BenchSync& meeting,
                               const BenchPlan& plan) {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<Peer> peer, Peer::Create(party, meeting, plan));
  return peer->Run();
}

}  // namespace ferry::cli
