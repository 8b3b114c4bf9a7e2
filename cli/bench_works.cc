// SPDX-License-Identifier: Apache-2.0
// Flows and whole steps.
#include "cli/bench_works.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

// Tensors that this node sends to another one, or receives from it, under one key.
struct Stream {
  int src = 0;
  int dst = 0;
  RendezvousKey key;
  // Sent in this round.
  std::vector<Tensor> tensors;
  // Of the receiver, if it has any: the same in every round.
  std::vector<Tensor> destinations;
  std::vector<BenchPostedPtr> posted;
};

uint64_t StreamSeed(const Stream& stream, const BenchWorkCase& at, int round, int index) {
  return PatternSeed(absl::StrCat(stream.src, ">", stream.dst, BenchModeName(at.mode), at.inflight),
                     at.bytes,
                     static_cast<uint64_t>(round) * static_cast<uint64_t>(at.inflight) +
                         static_cast<uint64_t>(index));
}

absl::StatusOr<Stream> MakeStream(Node& node, const BenchFlow& flow, const BenchWorkCase& at) {
  FERRY_ASSIGN_OR_RETURN(RendezvousKey key, node.Key("bench", flow.src, flow.dst));
  Stream stream{.src = flow.src, .dst = flow.dst, .key = std::move(key)};
  const bool is_into = flow.dst == node.node_id() && at.mode == BenchMode::kInto;
  for (int i = 0; is_into && i < at.inflight; ++i) {
    FERRY_ASSIGN_OR_RETURN(Tensor into, MakeBenchTensor(node, at.bytes));
    WritePattern(into.mutable_data(), at.bytes, 0);
    stream.destinations.push_back(std::move(into));
  }
  return stream;
}

absl::Status FillStream(Node& node, const BenchWorkCase& at, int round, Stream& stream) {
  for (int i = 0; i < at.inflight; ++i) {
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, MakeBenchTensor(node, at.bytes));
    WritePattern(tensor.mutable_data(), at.bytes, StreamSeed(stream, at, round, i));
    stream.tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

void PostStream(Node& node, Step& step, const BenchWorkCase& at, Stream& stream) {
  for (int i = 0; i < at.inflight; ++i) {
    const auto index = static_cast<size_t>(i);
    stream.posted.push_back(
        PostReceive(node, step, stream.key,
                    index < stream.destinations.size() ? stream.destinations[index] : Tensor()));
  }
}

absl::Status SendStream(Step& step, Stream& stream) {
  for (Tensor& tensor : stream.tensors) {
    FERRY_RETURN_IF_ERROR(step.Send(stream.key, std::move(tensor)));
  }
  stream.tensors.clear();
  return absl::OkStatus();
}

absl::Status AwaitStream(Node& node, Stream& stream) {
  for (const BenchPostedPtr& posted : stream.posted) {
    FERRY_RETURN_IF_ERROR(AwaitReceive(node, *posted));
  }
  return absl::OkStatus();
}

void CheckStream(const BenchWorkCase& at, int round, Stream& stream, BenchRounds& rounds) {
  for (int i = 0; i < at.inflight; ++i) {
    const Received& received = stream.posted[static_cast<size_t>(i)]->received;
    rounds.paths.insert(std::string(received.path));
    rounds.errors += CountTensorErrors(received.tensor, at.bytes, StreamSeed(stream, at, round, i));
  }
  stream.posted.clear();
}

class FlowWork final : public BenchRoundWork {
 public:
  FlowWork(Node& node, Step& step, const BenchWorkCase& at) : node_(node), step_(step), at_(at) {}

  absl::Status Add(const BenchFlow& flow) {
    FERRY_ASSIGN_OR_RETURN(Stream stream, MakeStream(node_, flow, at_));
    (flow.src == node_.node_id() ? out_ : in_).push_back(std::move(stream));
    return absl::OkStatus();
  }

 private:
  absl::Status Prepare(int round) override {
    for (Stream& stream : out_) FERRY_RETURN_IF_ERROR(FillStream(node_, at_, round, stream));
    for (Stream& stream : in_) PostStream(node_, step_, at_, stream);
    return absl::OkStatus();
  }

  absl::Status Run() override {
    for (Stream& stream : out_) FERRY_RETURN_IF_ERROR(SendStream(step_, stream));
    for (Stream& stream : in_) FERRY_RETURN_IF_ERROR(AwaitStream(node_, stream));
    return absl::OkStatus();
  }

  absl::Status Check(int round, BenchRounds& rounds) override {
    for (Stream& stream : in_) CheckStream(at_, round, stream, rounds);
    return absl::OkStatus();
  }

  Node& node_;
  Step& step_;
  const BenchWorkCase at_;
  std::vector<Stream> out_;
  std::vector<Stream> in_;
};

class StepsWork final : public BenchRoundWork {
 public:
  StepsWork(Node& node, int64_t first_step, const BenchWorkCase& at, Stream out, Stream in)
      : node_(node), first_step_(first_step), at_(at), out_(std::move(out)), in_(std::move(in)) {}

 private:
  absl::Status Prepare(int round) override {
    step_id_ = first_step_ + round;
    return FillStream(node_, at_, round, out_);
  }

  absl::Status Run() override {
    FERRY_ASSIGN_OR_RETURN(Step step, node_.OpenStep(step_id_));
    PostStream(node_, step, at_, in_);
    FERRY_RETURN_IF_ERROR(SendStream(step, out_));
    FERRY_RETURN_IF_ERROR(AwaitStream(node_, in_));
    return step.Close(kBenchPeerPatience);
  }

  absl::Status Check(int round, BenchRounds& rounds) override {
    CheckStream(at_, round, in_, rounds);
    return absl::OkStatus();
  }

  Node& node_;
  const int64_t first_step_;
  const BenchWorkCase at_;
  Stream out_;
  Stream in_;
  int64_t step_id_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeFlowWork(Node& node, Step& step,
                                                             const BenchFlowSet& set,
                                                             const BenchWorkCase& at) {
  auto work = std::make_unique<FlowWork>(node, step, at);
  for (const BenchFlow& flow : set.flows) {
    if (flow.src != node.node_id() && flow.dst != node.node_id()) continue;
    FERRY_RETURN_IF_ERROR(work->Add(flow));
  }
  return work;
}

absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeStepsWork(Node& node, int64_t first_step,
                                                              const BenchWorkCase& at) {
  const int self = node.node_id();
  FERRY_ASSIGN_OR_RETURN(Stream out, MakeStream(node, {self, 1 - self}, at));
  FERRY_ASSIGN_OR_RETURN(Stream in, MakeStream(node, {1 - self, self}, at));
  return std::make_unique<StepsWork>(node, first_step, at, std::move(out), std::move(in));
}

}  // namespace ferry::cli
