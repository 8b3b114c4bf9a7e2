// SPDX-License-Identifier: Apache-2.0
// Flows and whole steps.
#include "bench/works.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

// Tensors between this node and another one, under one key.
struct Stream {
  int src = 0;
  int dst = 0;
  RendezvousKey key;
  // Tensors sent in this round.
  std::vector<Tensor> tensors;
  // The receiver's buffers, if any: the same in every round.
  std::vector<Tensor> destinations;
  std::vector<BenchPostedPtr> posted;
};

uint64_t StreamSeed(const Stream& stream, const BenchWorkCase& at, int round, int index) {
  return PatternSeed(absl::StrCat(stream.src, ">", stream.dst, BenchModeName(at.mode), at.inflight),
                     at.bytes,
                     static_cast<uint64_t>(round) * static_cast<uint64_t>(at.inflight) +
                         static_cast<uint64_t>(index));
}

absl::StatusOr<Stream> MakeStream(const BenchSide& side, const BenchFlow& flow,
                                  const BenchWorkCase& at) {
  FERRY_ASSIGN_OR_RETURN(RendezvousKey key, side.Key("bench", flow.src, flow.dst));
  Stream stream{.src = flow.src, .dst = flow.dst, .key = std::move(key)};
  const bool is_into = flow.dst == side.party.rank && at.mode == BenchMode::kInto;
  for (int i = 0; is_into && i < at.inflight; ++i) {
    FERRY_ASSIGN_OR_RETURN(Tensor into, side.device.MakePattern(at.bytes, 0));
    stream.destinations.push_back(std::move(into));
  }
  return stream;
}

absl::Status FillStream(const BenchSide& side, const BenchWorkCase& at, int round, Stream& stream) {
  for (int i = 0; i < at.inflight; ++i) {
    FERRY_ASSIGN_OR_RETURN(Tensor tensor,
                           side.device.MakePattern(at.bytes, StreamSeed(stream, at, round, i)));
    stream.tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

void PostStream(const BenchSide& side, Step& step, const BenchWorkCase& at, Stream& stream) {
  const auto destination = [&stream](size_t index) {
    return index < stream.destinations.size() ? stream.destinations[index] : Tensor();
  };
  const auto count = static_cast<size_t>(at.inflight);
  const auto batch = static_cast<size_t>(at.batch);
  for (size_t begin = 0; begin < count; begin += batch) {
    if (batch == 1) {
      stream.posted.push_back(PostReceive(side.party.node, step, stream.key, destination(begin)));
      continue;
    }
    std::vector<RecvItem> items;
    for (size_t i = begin; i < std::min(begin + batch, count); ++i) {
      items.push_back(
          BeginReceive(side.party.node, stream.key, destination(i), stream.posted.emplace_back()));
    }
    step.RecvManyAsync(absl::MakeSpan(items));
  }
}

absl::Status SendStream(Step& step, const BenchWorkCase& at, Stream& stream) {
  const size_t count = stream.tensors.size();
  const auto batch = static_cast<size_t>(at.batch);
  for (size_t begin = 0; begin < count; begin += batch) {
    if (batch == 1) {
      FERRY_RETURN_IF_ERROR(step.Send(stream.key, std::move(stream.tensors[begin])));
      continue;
    }
    std::vector<SendItem> items;
    for (size_t i = begin; i < std::min(begin + batch, count); ++i) {
      items.push_back({.key = &stream.key, .tensor = std::move(stream.tensors[i])});
    }
    step.SendMany(absl::MakeSpan(items));
    for (const SendItem& item : items) FERRY_RETURN_IF_ERROR(item.status);
  }
  stream.tensors.clear();
  return absl::OkStatus();
}

absl::Status TakeStream(const BenchSide& side, const BenchWorkCase& at, Stream& stream) {
  for (const BenchPostedPtr& posted : stream.posted) {
    FERRY_RETURN_IF_ERROR(side.Take(at.mode, stream.src, *posted));
  }
  return absl::OkStatus();
}

absl::Status CheckStream(const BenchSide& side, const BenchWorkCase& at, int round, Stream& stream,
                         BenchRounds& rounds) {
  for (int i = 0; i < at.inflight; ++i) {
    const Received& received = stream.posted[static_cast<size_t>(i)]->received;
    rounds.paths.insert(std::string(received.path));
    FERRY_ASSIGN_OR_RETURN(
        const size_t errors,
        side.device.CountErrors(received.tensor, at.bytes, StreamSeed(stream, at, round, i)));
    rounds.errors += errors;
  }
  stream.posted.clear();
  return absl::OkStatus();
}

class FlowWork final : public BenchRoundWork {
 public:
  FlowWork(const BenchSide& side, Step& step, const BenchWorkCase& at)
      : side_(side), step_(step), at_(at) {}

  absl::Status Add(const BenchFlow& flow) {
    FERRY_ASSIGN_OR_RETURN(Stream stream, MakeStream(side_, flow, at_));
    (flow.src == side_.party.rank ? out_ : in_).push_back(std::move(stream));
    return absl::OkStatus();
  }

 private:
  absl::Status Prepare(int round) override {
    for (Stream& stream : out_) FERRY_RETURN_IF_ERROR(FillStream(side_, at_, round, stream));
    for (Stream& stream : in_) PostStream(side_, step_, at_, stream);
    return absl::OkStatus();
  }

  absl::Status Run() override {
    for (Stream& stream : out_) FERRY_RETURN_IF_ERROR(SendStream(step_, at_, stream));
    for (Stream& stream : in_) FERRY_RETURN_IF_ERROR(TakeStream(side_, at_, stream));
    return absl::OkStatus();
  }

  absl::Status Check(int round, BenchRounds& rounds) override {
    for (Stream& stream : in_) {
      FERRY_RETURN_IF_ERROR(CheckStream(side_, at_, round, stream, rounds));
    }
    return absl::OkStatus();
  }

  const BenchSide& side_;
  Step& step_;
  const BenchWorkCase at_;
  std::vector<Stream> out_;
  std::vector<Stream> in_;
};

class PingWork final : public BenchRoundWork {
 public:
  PingWork(const BenchSide& side, Step& step, const BenchWorkCase& at, Stream out, Stream in,
           bool is_first)
      : side_(side),
        step_(step),
        at_(at),
        out_(std::move(out)),
        in_(std::move(in)),
        is_first_(is_first) {}

 private:
  absl::Status Prepare(int round) override {
    PostStream(side_, step_, at_, in_);
    return FillStream(side_, at_, round, out_);
  }

  absl::Status Run() override {
    if (is_first_) FERRY_RETURN_IF_ERROR(SendStream(step_, at_, out_));
    FERRY_RETURN_IF_ERROR(TakeStream(side_, at_, in_));
    return is_first_ ? absl::OkStatus() : SendStream(step_, at_, out_);
  }

  absl::Status Check(int round, BenchRounds& rounds) override {
    return CheckStream(side_, at_, round, in_, rounds);
  }

  const BenchSide& side_;
  Step& step_;
  const BenchWorkCase at_;
  Stream out_;
  Stream in_;
  const bool is_first_;
};

class StepsWork final : public BenchRoundWork {
 public:
  StepsWork(const BenchSide& side, int64_t first_step, const BenchWorkCase& at, Stream out,
            Stream in)
      : side_(side), first_step_(first_step), at_(at), out_(std::move(out)), in_(std::move(in)) {}

 private:
  absl::Status Prepare(int round) override {
    step_id_ = first_step_ + round;
    return FillStream(side_, at_, round, out_);
  }

  absl::Status Run() override {
    FERRY_ASSIGN_OR_RETURN(Step step, side_.party.node.OpenStep(step_id_));
    PostStream(side_, step, at_, in_);
    FERRY_RETURN_IF_ERROR(SendStream(step, at_, out_));
    FERRY_RETURN_IF_ERROR(TakeStream(side_, at_, in_));
    return step.Close(side_.party.timeout);
  }

  absl::Status Check(int round, BenchRounds& rounds) override {
    return CheckStream(side_, at_, round, in_, rounds);
  }

  const BenchSide& side_;
  const int64_t first_step_;
  const BenchWorkCase at_;
  Stream out_;
  Stream in_;
  int64_t step_id_ = 0;
};

}  // namespace

absl::StatusOr<RendezvousKey> BenchSide::Key(absl::string_view name, int from, int to) const {
  return party.node.Key(name, party.NodeOf(from), party.NodeOf(to), plan.DeviceOf(from),
                        plan.DeviceOf(to));
}

absl::Status BenchSide::Take(BenchMode mode, int from, BenchPosted& posted) const {
  FERRY_RETURN_IF_ERROR(AwaitReceive(party, from, posted));
  const Tensor& tensor = posted.received.tensor;
  FERRY_RETURN_IF_ERROR(device.AwaitBytes(tensor));
  if (mode == BenchMode::kRead) {
    asm volatile("" : : "r"(ReadEveryByte(tensor.data(), tensor.bytes())) : "memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeFlowWork(const BenchSide& side, Step& step,
                                                             const BenchFlowSet& set,
                                                             const BenchWorkCase& at) {
  auto work = std::make_unique<FlowWork>(side, step, at);
  for (const BenchFlow& flow : set.flows) {
    if (flow.src != side.party.rank && flow.dst != side.party.rank) continue;
    FERRY_RETURN_IF_ERROR(work->Add(flow));
  }
  return work;
}

absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakePingWork(const BenchSide& side, Step& step,
                                                             const BenchFlow& flow,
                                                             const BenchWorkCase& at) {
  const bool is_first = flow.src == side.party.rank;
  const int other = is_first ? flow.dst : flow.src;
  FERRY_ASSIGN_OR_RETURN(Stream out, MakeStream(side, {side.party.rank, other}, at));
  FERRY_ASSIGN_OR_RETURN(Stream in, MakeStream(side, {other, side.party.rank}, at));
  return std::make_unique<PingWork>(side, step, at, std::move(out), std::move(in), is_first);
}

absl::StatusOr<std::unique_ptr<BenchRoundWork>> MakeStepsWork(const BenchSide& side,
                                                              int64_t first_step,
                                                              const BenchWorkCase& at) {
  const int self = side.party.rank;
  FERRY_ASSIGN_OR_RETURN(Stream out, MakeStream(side, {self, 1 - self}, at));
  FERRY_ASSIGN_OR_RETURN(Stream in, MakeStream(side, {1 - self, self}, at));
  return std::make_unique<StepsWork>(side, first_step, at, std::move(out), std::move(in));
}

}  // namespace ferry::cli
