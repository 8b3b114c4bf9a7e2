// SPDX-License-Identifier: Apache-2.0
// BenchSync: synchronisation, clocks and result collection between a bench's processes.
#ifndef FERRY_BENCH_MEETING_H_
#define FERRY_BENCH_MEETING_H_

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "node/node.h"

namespace ferry::cli {

// Timeout for each operation of a bench, after which the other side is considered lost.
inline constexpr absl::Duration kBenchPeerTimeout = absl::Minutes(2);

// The processes of a bench, from one process's view. "Node 2" in a bench's output is rank 2: the
// bench may use its own job, or some nodes of another one.
struct BenchParticipants {
  Node& node;
  int rank = 0;
  // Node ids in the job, by rank.
  std::vector<int> nodes;
  // First of the step ids reserved for the bench.
  int64_t first_step = 1;
  absl::Duration timeout = kBenchPeerTimeout;
  // Prefix of the bench's keys in the store; empty if it has its own job.
  std::string store_prefix;
  // Null: not stoppable. Cancelling must also wake the node's control channels.
  const CancellationToken* stop = nullptr;

  int size() const { return static_cast<int>(nodes.size()); }
  bool is_first() const { return rank == 0; }
  int NodeOf(int other) const { return nodes[static_cast<size_t>(other)]; }
  // Like Node::Key, with ranks.
  absl::StatusOr<RendezvousKey> Key(absl::string_view name, int from, int to) const {
    return node.Key(name, NodeOf(from), NodeOf(to));
  }
};

// The participants of a round, and who measures its time if they share no clock.
struct BenchRoundMembers {
  // Ranks; the first one measures the time.
  std::vector<int> ranks;
  // The first rank's work is a round trip: it starts the round, which ends when the others have
  // answered.
  bool is_round_trip = false;
};

// Readings right before a round: this process's CPU time, and then its clock.
struct BenchStart {
  double cpu_s = 0;
  absl::Time time;
};

// Not thread-safe.
class BenchSync {
 public:
  virtual ~BenchSync() = default;

  // True if all share a machine, and so memory and steady clock.
  virtual bool is_on_one_machine() const = 0;
  // True if this process's times of such rounds are meaningful.
  virtual bool KeepsTime(const BenchRoundMembers& members) const = 0;

  // Blocks until all members have arrived and are running.
  //   Errors: here and below DEADLINE_EXCEEDED, or how another process ended.
  virtual absl::StatusOr<BenchStart> Begin(const BenchRoundMembers& members) = 0;
  // Blocks until all members are done. Returns when this process was done, or, on the member that
  // measures for all, when all were.
  virtual absl::StatusOr<absl::Time> End(const BenchRoundMembers& members) = 0;
  // A barrier of the whole bench; not time-critical.
  virtual absl::Status AwaitAll() = 0;

  // Reports a result of this process: an object with "event". All processes make the same number of
  // calls.
  virtual absl::Status Tell(const nlohmann::ordered_json& line) = 0;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_MEETING_H_
