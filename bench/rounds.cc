// SPDX-License-Identifier: Apache-2.0
// Receives, and the loop around the timed work.
#include "bench/rounds.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/processes.h"
#include "bench/times.h"
#include "cli/pattern.h"

namespace ferry::cli {
namespace {

constexpr int kEmptyWarmUps = 10;
constexpr int kEmptyRounds = 200;

int64_t Nanoseconds(absl::Time time) { return absl::ToInt64Nanoseconds(time - absl::UnixEpoch()); }

class EmptyWork final : public BenchRoundWork {
  absl::Status Prepare(int) override { return absl::OkStatus(); }
  absl::Status Run() override { return absl::OkStatus(); }
  absl::Status Check(int, BenchRounds&) override { return absl::OkStatus(); }
};

}  // namespace

RecvItem BeginReceive(Node& node, const RendezvousKey& key, const Tensor& destination,
                      BenchPostedPtr& posted) {
  posted = std::make_shared<BenchPosted>();
  RecvItem item;
  item.key = &key;
  item.args.destination = destination;
  EventLoop& loop = node.transfer_engine().loop();
  item.done = [posted, &loop](absl::Status status, Received received) {
    posted->status = std::move(status);
    posted->received = std::move(received);
    posted->is_done.store(true, std::memory_order_release);
    loop.Wake();
  };
  return item;
}

BenchPostedPtr PostReceive(Node& node, Step& step, const RendezvousKey& key,
                           const Tensor& destination) {
  BenchPostedPtr posted;
  RecvItem item = BeginReceive(node, key, destination, posted);
  step.RecvAsync(key, std::move(item.args), std::move(item.done));
  return posted;
}

absl::Status AwaitReceive(const BenchParticipants& party, int from, BenchPosted& posted) {
  const bool is_done = party.node.transfer_engine().loop().WaitUntil(
      [&party, &posted] {
        return posted.is_done.load(std::memory_order_acquire) ||
               (party.stop != nullptr && party.stop->is_cancelled());
      },
      SteadyClock().Now() + party.timeout);
  if (party.stop != nullptr && party.stop->is_cancelled()) return party.stop->status();
  if (!is_done) {
    return absl::DeadlineExceededError(absl::StrCat(
        "node ", party.NodeOf(from), " has sent no result of the bench within ",
        absl::FormatDuration(party.timeout), ": check that process, or raise --timeout"));
  }
  return posted.status;
}

absl::Status SendWord(Step& step, const RendezvousKey& key) {
  FERRY_ASSIGN_OR_RETURN(Tensor word, Tensor::Allocate(DataType::kUint8, Shape()));
  return step.Send(key, std::move(word));
}

absl::Status AwaitWord(const BenchParticipants& party, int from, Step& step,
                       const RendezvousKey& key) {
  return AwaitReceive(party, from, *PostReceive(party.node, step, key, Tensor()));
}

absl::StatusOr<bool> AgreeOn(const BenchParticipants& party, Step& step, const RendezvousKey& out,
                             const RendezvousKey& in, bool own) {
  FERRY_ASSIGN_OR_RETURN(Tensor word, Tensor::Allocate(DataType::kUint8, Shape()));
  *static_cast<uint8_t*>(word.mutable_data()) = own ? 1 : 0;
  const BenchPostedPtr answer = PostReceive(party.node, step, in, Tensor());
  FERRY_RETURN_IF_ERROR(step.Send(out, std::move(word)));
  FERRY_RETURN_IF_ERROR(AwaitReceive(party, 1 - party.rank, *answer));
  return own && *static_cast<const uint8_t*>(answer->received.tensor.data()) != 0;
}

absl::StatusOr<Tensor> MakeBenchTensor(Node& node, size_t bytes) {
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({static_cast<int64_t>(bytes)}));
  return node.Allocate("host:0", DataType::kUint8, shape);
}

size_t CountTensorErrors(const Tensor& tensor, size_t bytes, uint64_t seed) {
  if (tensor.bytes() != bytes) return bytes;
  return CountPatternErrors(tensor.data(), bytes, seed);
}

std::string PathReason(Node& node, int from, size_t bytes, const std::set<std::string>& paths) {
  if (paths.contains("eager")) return "it was sent before it was requested";
  if (paths.contains("inline")) return "it is small enough to come with the answer";
  const absl::StatusOr<PathExplanation> choice = node.PathFrom(from, bytes);
  return choice.ok() ? Explain(*choice) : std::string(choice.status().message());
}

nlohmann::ordered_json BenchRounds::ToJson() const {
  return {{"starts_ns", starts_ns},
          {"ends_ns", ends_ns},
          {"cpu_s", cpu_s},
          {"errors", errors},
          {"paths", paths}};
}

absl::StatusOr<BenchRounds> RunRounds(BenchSync& meeting, const BenchRoundCount& count,
                                      BenchRoundWork& work) {
  BenchRounds rounds;
  for (int round = 0; round < count.warm_ups + count.iterations; ++round) {
    FERRY_RETURN_IF_ERROR(work.Prepare(round));
    FERRY_ASSIGN_OR_RETURN(const BenchStart start, meeting.Begin(count.members));
    FERRY_RETURN_IF_ERROR(work.Run());
    // Members wait for all, because a sender's memory may still be read.
    FERRY_ASSIGN_OR_RETURN(const absl::Time end, meeting.End(count.members));
    if (round >= count.warm_ups) {
      rounds.cpu_s += OwnCpuSeconds() - start.cpu_s;
      if (meeting.KeepsTime(count.members)) {
        rounds.starts_ns.push_back(Nanoseconds(start.time));
        rounds.ends_ns.push_back(Nanoseconds(end));
      }
    }
    FERRY_RETURN_IF_ERROR(work.Check(round, rounds));
    // The first tensors are requested while there is no connection.
    if (round < count.warm_ups) rounds.paths.clear();
  }
  return rounds;
}

absl::StatusOr<double> MeasureEmptyRound(BenchSync& meeting, const BenchRoundMembers& members) {
  EmptyWork work;
  FERRY_ASSIGN_OR_RETURN(const BenchRounds rounds,
                         RunRounds(meeting, {members, kEmptyWarmUps, kEmptyRounds}, work));
  std::vector<absl::Duration> samples;
  for (size_t i = 0; i < rounds.starts_ns.size(); ++i) {
    samples.push_back(absl::Nanoseconds(rounds.ends_ns[i] - rounds.starts_ns[i]));
  }
  return absl::ToDoubleSeconds(SummarizeTimes(std::move(samples)).p50);
}

}  // namespace ferry::cli
