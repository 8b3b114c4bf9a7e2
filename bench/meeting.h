// SPDX-License-Identifier: Apache-2.0
// BenchSync: how the processes of a bench wait for each other, agree on what a time is, and hand
// in what they have found.
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

// How long anything of a bench may take until the other side is given up.
inline constexpr absl::Duration kBenchPeerTimeout = absl::Minutes(2);

// The processes of a bench, seen from one of them. What a bench says of "node 2" is its rank: the
// nodes of its own job, or some of another one.
struct BenchParticipants {
  Node& node;
  int rank = 0;
  // Ids of the job, by rank.
  std::vector<int> nodes;
  // Of steps that nobody else uses: this one and those that follow.
  int64_t first_step = 1;
  absl::Duration timeout = kBenchPeerTimeout;
  // Of keys in the store that nobody else uses; empty where the job is the bench's own.
  std::string store_prefix;
  // Null: nobody stops it. Whoever cancels it wakes the node's control channels.
  const CancellationToken* stop = nullptr;

  int size() const { return static_cast<int>(nodes.size()); }
  bool is_first() const { return rank == 0; }
  int NodeOf(int other) const { return nodes[static_cast<size_t>(other)]; }
  // As Node::Key, of ranks.
  absl::StatusOr<RendezvousKey> Key(absl::string_view name, int from, int to) const {
    return node.Key(name, NodeOf(from), NodeOf(to));
  }
};

// Who takes part in rounds, and whose times they are if nobody's clock is that of the others.
struct BenchRoundMembers {
  // Ranks; the first one keeps the time.
  std::vector<int> ranks;
  // Whether the work of the first one is a round by itself: it begins, and ends when the others
  // have answered.
  bool is_round_trip = false;
};

// The last looks before a round: how much CPU time this process has had, and then at its clock.
struct BenchStart {
  double cpu_s = 0;
  absl::Time time;
};

// Not thread-safe.
class BenchSync {
 public:
  virtual ~BenchSync() = default;

  // Whether all share a machine: its memory, and its steady clock.
  virtual bool is_on_one_machine() const = 0;
  // Whether this process's times of such rounds are of use.
  virtual bool KeepsTime(const BenchRoundMembers& members) const = 0;

  // Waits until all members are here, and awake.
  //   Errors: here and below DEADLINE_EXCEEDED or what has become of another process.
  virtual absl::StatusOr<BenchStart> Begin(const BenchRoundMembers& members) = 0;
  // Waits until all members are through. The time at which this process was, or, of who keeps the
  // time for all, at which all of them were.
  virtual absl::StatusOr<absl::Time> End(const BenchRoundMembers& members) = 0;
  // Waits for the whole bench, without hurry.
  virtual absl::Status AwaitAll() = 0;

  // Hands in what this process has found: an object with "event". All do so as often.
  virtual absl::Status Tell(const nlohmann::ordered_json& line) = 0;
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_MEETING_H_
