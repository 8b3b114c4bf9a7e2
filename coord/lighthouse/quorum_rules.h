// SPDX-License-Identifier: Apache-2.0
// The rules of torchft's Lighthouse: which replicas form a quorum, and why there is none yet.
#ifndef FERRY_COORD_LIGHTHOUSE_QUORUM_RULES_H_
#define FERRY_COORD_LIGHTHOUSE_QUORUM_RULES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ferry::coord {

// A replica group's description of itself, with which it joins. The replicas are torchft's: each is
// a whole group of ranks, of which one process, its manager, is the client.
struct QuorumMember {
  std::string replica_id;
  // The manager's, "http://host:port".
  std::string address;
  int64_t step = 0;
  uint64_t world_size = 0;
  // The replica wants no newcomers in the next quorum.
  bool shrink_only = false;
  // The steps in a row that it could not commit.
  int64_t commit_failures = 0;
  // The message as it came, which the other members receive; not looked into here.
  std::string encoded;
};

struct Quorum {
  int64_t id = 0;
  // Ordered by replica_id.
  std::vector<QuorumMember> members;
  absl::Time created;
};
using QuorumPtr = std::shared_ptr<const Quorum>;

struct LighthouseOptions {
  // A quorum that is not the previous one again has at least so many joined replicas. torchft's own
  // server has no default.
  size_t min_replicas = 1;
  // How long replicas that have joined wait for others that send heartbeats and have not.
  // The defaults of this and the next two: LighthouseOpt in torchft's src/lighthouse.rs.
  absl::Duration join_timeout = absl::Seconds(60);
  // How often the rules are applied while replicas wait; a replica that joins has them applied at
  // once.
  absl::Duration quorum_tick = absl::Milliseconds(100);
  // A replica that is silent for this long counts as dead.
  absl::Duration heartbeat_timeout = absl::Seconds(5);
  // A replica that is silent for this long is forgotten. Only reports mention it until then.
  absl::Duration forget_after = absl::Minutes(10);
  // The id of the first quorum.
  int64_t first_quorum_id = 1;

  // Limits. Replicas that are silent make room for others.
  size_t max_replicas = 10'000;
  size_t max_id_bytes = 1024;
  // One member as it came, and those of all pending calls and of the quorum together.
  size_t max_member_bytes = size_t{64} << 10;
  size_t max_pending_bytes = size_t{64} << 20;
  // A replica's calls; more of them end the oldest.
  size_t max_calls_of_replica = 8;
  // A call without a deadline, or with a later one, ends after this.
  absl::Duration max_wait = absl::Hours(24);
};

// A replica, as the rules see it.
struct ReplicaView {
  absl::string_view id;
  absl::Time last_heartbeat;
  // Null if it has not joined.
  const QuorumMember* joined = nullptr;
  absl::Time joined_at;
};

enum class QuorumObstacle {
  // There is none.
  kNone,
  kTooFewReplicas,
  // At most half of the replicas that send heartbeats have joined: the others could form a second
  // quorum ("split brain").
  kMinority,
  // Replicas that send heartbeats have not joined, and the join timeout is not over.
  kStragglers,
  // shrink_only admits none of those that have joined.
  kAllAreNewcomers,
};

struct QuorumDecision {
  QuorumObstacle obstacle = QuorumObstacle::kNone;
  // Those of the quorum, ordered by id; empty if there is an obstacle. They point to the views'.
  std::vector<const QuorumMember*> members;
  // Replicas that send heartbeats, and those of them that have joined.
  size_t healthy = 0;
  size_t joined = 0;
  // When kStragglers ends.
  absl::Time join_deadline;
};

// Applies the rules of `quorum_compute` in torchft's src/lighthouse.rs. A replica is healthy if its
// last heartbeat is younger than heartbeat_timeout; the others are not considered.
//   1. If every member of the previous quorum is healthy and has joined, the quorum is all those
//      that have joined, at once.
//   2. Otherwise at least min_replicas have joined,
//   3. which are more than half of the healthy ones,
//   4. and all healthy ones have, or the first one did so join_timeout ago.
// If one of those that have joined says shrink_only, only members of the previous quorum are taken,
// although all count for the rules. Unlike torchft's, a quorum is never empty.
//   replicas: ordered by id.
//   previous: null if there was none.
QuorumDecision DecideQuorum(absl::Span<const ReplicaView> replicas, const Quorum* previous,
                            const LighthouseOptions& options, absl::Time now);

// Why there is no quorum, who is missing, and what helps: one sentence and its list of names.
// REQUIRES: the decision, of the same arguments, has an obstacle.
std::string DescribeObstacle(const QuorumDecision& decision, absl::Span<const ReplicaView> replicas,
                             const Quorum* previous, const LighthouseOptions& options,
                             absl::Time now);

}  // namespace ferry::coord

#endif  // FERRY_COORD_LIGHTHOUSE_QUORUM_RULES_H_
