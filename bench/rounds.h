// SPDX-License-Identifier: Apache-2.0
// Rounds of a pattern, as one of its processes runs them: prepare, start together, run, check.
#ifndef FERRY_BENCH_ROUNDS_H_
#define FERRY_BENCH_ROUNDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "bench/meeting.h"
#include "node/node.h"

namespace ferry::cli {

// A receive that is asked for now and waited for later. Shared with its callback.
struct BenchPosted {
  std::atomic<bool> is_done{false};
  absl::Status status;
  Received received;
};
using BenchPostedPtr = std::shared_ptr<BenchPosted>;

// Into `destination`, or as it comes if that is empty.
BenchPostedPtr PostReceive(Node& node, Step& step, const RendezvousKey& key,
                           const Tensor& destination);
// Drives the node's control channels meanwhile.
//   from: the rank that sends it.
//   Errors: those of the receive; why the bench was stopped; DEADLINE_EXCEEDED naming who did not
//   send.
absl::Status AwaitReceive(const BenchParticipants& party, int from, BenchPosted& posted);
// A tensor that says nothing but that it is there, and waiting for one. Errors: as AwaitReceive.
absl::Status SendWord(Step& step, const RendezvousKey& key);
absl::Status AwaitWord(const BenchParticipants& party, int from, Step& step,
                       const RendezvousKey& key);
// Whether both of two say yes: a word each way that says so.
//   out, in: keys of nothing else that is under way. Errors: as AwaitReceive.
absl::StatusOr<bool> AgreeOn(const BenchParticipants& party, Step& step, const RendezvousKey& out,
                             const RendezvousKey& in, bool own);
// Of the node's arena, uint8.
absl::StatusOr<Tensor> MakeBenchTensor(Node& node, size_t bytes);
// Bytes that are not those of the pattern; all of them where it has another size.
size_t CountTensorErrors(const Tensor& tensor, size_t bytes, uint64_t seed);
// Why tensors of that size come from node `from` the way they do; paths: that were taken.
std::string PathReason(Node& node, int from, size_t bytes, const std::set<std::string>& paths);

// What the rounds of one case came to, at one process.
struct BenchRounds {
  // By this process's steady clock, in ns.
  std::vector<int64_t> starts_ns;
  std::vector<int64_t> ends_ns;
  // From the start of each round until all were through.
  double cpu_s = 0;
  size_t errors = 0;
  std::set<std::string> paths;

  nlohmann::ordered_json ToJson() const;
};

// What one process does in a round; only Run is timed.
class BenchRoundWork {
 public:
  virtual ~BenchRoundWork() = default;
  virtual absl::Status Prepare(int round) = 0;
  virtual absl::Status Run() = 0;
  // Verifies what has come, and lets go of it.
  virtual absl::Status Check(int round, BenchRounds& rounds) = 0;
};

// Who takes part in a case, and how many rounds it has.
struct BenchRoundCount {
  BenchRoundMembers members;
  int warm_ups = 0;
  int iterations = 0;
};

absl::StatusOr<BenchRounds> RunRounds(BenchSync& meeting, const BenchRoundCount& count,
                                      BenchRoundWork& work);
// What a round takes in which nothing is done, in seconds; 0 where no time is kept.
absl::StatusOr<double> MeasureEmptyRound(BenchSync& meeting, const BenchRoundMembers& members);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_ROUNDS_H_
