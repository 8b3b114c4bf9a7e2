// SPDX-License-Identifier: Apache-2.0
// The rounds of a pattern in one of its processes: prepare, start together, run, verify.
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

// A posted receive to be waited for later. Shared with its callback.
struct BenchPosted {
  std::atomic<bool> is_done{false};
  absl::Status status;
  Received received;
};
using BenchPostedPtr = std::shared_ptr<BenchPosted>;

// A receive into `destination`, or as delivered if that is empty; the caller posts it.
RecvItem BeginReceive(Node& node, const RendezvousKey& key, const Tensor& destination,
                      BenchPostedPtr& posted);
BenchPostedPtr PostReceive(Node& node, Step& step, const RendezvousKey& key,
                           const Tensor& destination);
// Blocks until the receive completes; leads the node's event loop meanwhile.
//   from: the sender's rank.
//   Errors: those of the receive; why the bench was stopped; DEADLINE_EXCEEDED naming the sender.
absl::Status AwaitReceive(const BenchParticipants& party, int from, BenchPosted& posted);
// Sends an empty tensor as a signal, and waits for one. Errors: as AwaitReceive.
absl::Status SendWord(Step& step, const RendezvousKey& key);
absl::Status AwaitWord(const BenchParticipants& party, int from, Step& step,
                       const RendezvousKey& key);
// Exchanges a boolean between two processes; returns true if both sent true.
//   out, in: keys not otherwise in use. Errors: as AwaitReceive.
absl::StatusOr<bool> AgreeOn(const BenchParticipants& party, Step& step, const RendezvousKey& out,
                             const RendezvousKey& in, bool own);
// Allocates a uint8 tensor in the node's arena.
absl::StatusOr<Tensor> MakeBenchTensor(Node& node, size_t bytes);
// Returns the number of bytes that differ from the pattern; all of them if the size differs.
size_t CountTensorErrors(const Tensor& tensor, size_t bytes, uint64_t seed);
// Explains the path of tensors of that size from node `from`; paths: those actually taken.
std::string PathReason(Node& node, int from, size_t bytes, const std::set<std::string>& paths);

// The results of one case's rounds at one process.
struct BenchRounds {
  // By this process's steady clock, in ns.
  std::vector<int64_t> starts_ns;
  std::vector<int64_t> ends_ns;
  // From the start of each round until all were done.
  double cpu_s = 0;
  size_t errors = 0;
  std::set<std::string> paths;

  nlohmann::ordered_json ToJson() const;
};

// One process's work in a round; only Run is timed.
class BenchRoundWork {
 public:
  virtual ~BenchRoundWork() = default;
  virtual absl::Status Prepare(int round) = 0;
  virtual absl::Status Run() = 0;
  // Verifies the received tensors, and releases them.
  virtual absl::Status Check(int round, BenchRounds& rounds) = 0;
};

// The participants of a case, and its number of rounds.
struct BenchRoundCount {
  BenchRoundMembers members;
  int warm_ups = 0;
  int iterations = 0;
};

absl::StatusOr<BenchRounds> RunRounds(BenchSync& meeting, const BenchRoundCount& count,
                                      BenchRoundWork& work);
// Returns the duration of a round without work, in seconds; 0 if this process measures no time.
absl::StatusOr<double> MeasureEmptyRound(BenchSync& meeting, const BenchRoundMembers& members);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_ROUNDS_H_
