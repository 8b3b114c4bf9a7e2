// SPDX-License-Identifier: Apache-2.0
// The quorum rules of torchft's Lighthouse: which replicas form a quorum, or why there is none yet.
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

// The description with which a replica joins. A replica is a replica group of torchft: a group of
// ranks whose manager is the client of the lighthouse.
struct QuorumMember {
  std::string replica_id;
  // The address of its manager, "http://host:port".
  std::string address;
  int64_t step = 0;
  uint64_t world_size = 0;
  // The next quorum must not have new members.
  bool shrink_only = false;
  // The number of consecutive steps that it failed to commit.
  int64_t commit_failures = 0;
  // The serialized message, which is passed on to the other members; opaque here.
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
  // The number of replicas that must have joined, unless all members of the previous quorum have.
  // torchft's own server has no default.
  size_t min_replicas = 1;
  // How long joined replicas wait for healthy ones that have not joined. The defaults of this and
  // the next two options are those of LighthouseOpt in torchft's src/lighthouse.rs.
  absl::Duration join_timeout = absl::Seconds(60);
  // How often the rules are evaluated while calls are pending, in addition to each Join.
  absl::Duration quorum_tick = absl::Milliseconds(100);
  // A replica without heartbeats for this long is not healthy.
  absl::Duration heartbeat_timeout = absl::Seconds(5);
  // A replica without heartbeats for this long is removed; until then it is shown in reports.
  absl::Duration forget_after = absl::Minutes(10);
  // The id of the first quorum.
  int64_t first_quorum_id = 1;

  // Limits. At max_replicas, replicas that are not healthy are removed to make room for new ones.
  size_t max_replicas = 10'000;
  size_t max_id_bytes = 1024;
  // The size of one serialized member, and of the members of all pending calls and of the latest
  // quorum together.
  size_t max_member_bytes = size_t{64} << 10;
  size_t max_pending_bytes = size_t{64} << 20;
  // Pending calls of one replica; a further one ends the oldest.
  size_t max_calls_of_replica = 8;
  // The longest wait of a call, whatever its deadline.
  absl::Duration max_wait = absl::Hours(24);
};

// The part of a replica's state that the rules depend on.
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
  // At most half of the healthy replicas have joined: the others could form a second quorum ("split
  // brain").
  kMinority,
  // Healthy replicas have not joined, and the join timeout has not passed.
  kStragglers,
  // With shrink_only: none of the joined replicas was in the previous quorum.
  kNoPreviousMember,
};

struct QuorumDecision {
  QuorumObstacle obstacle = QuorumObstacle::kNone;
  // The members of the quorum, ordered by id; empty if there is an obstacle. They point into the
  // views.
  std::vector<const QuorumMember*> members;
  // The number of healthy replicas, and of those that have joined.
  size_t healthy = 0;
  size_t joined = 0;
  // When kStragglers ends.
  absl::Time join_deadline;
};

// Applies the rules of `quorum_compute` in torchft's src/lighthouse.rs. A replica is healthy if its
// last heartbeat is younger than heartbeat_timeout; only healthy replicas count.
//   1. If every member of the previous quorum is healthy and has joined, the quorum is all those
//      that have joined, at once.
//   2. Otherwise at least min_replicas must have joined,
//   3. and more than half of the healthy ones,
//   4. and all healthy ones, unless the first one joined join_timeout ago or earlier.
// If a joined replica has set shrink_only, the quorum is restricted to members of the previous one,
// although all joined replicas count in rules 2 to 4. Unlike in torchft, a quorum is never empty.
//   replicas: ordered by id.
//   previous: null if there was none.
QuorumDecision DecideQuorum(absl::Span<const ReplicaView> replicas, const Quorum* previous,
                            const LighthouseOptions& options, absl::Time now);

// Returns a message that says why there is no quorum, which replicas are missing, and what to do.
// REQUIRES: `decision` was made with the same arguments, and has an obstacle.
std::string DescribeObstacle(const QuorumDecision& decision, absl::Span<const ReplicaView> replicas,
                             const Quorum* previous, const LighthouseOptions& options,
                             absl::Time now);

}  // namespace ferry::coord

#endif  // FERRY_COORD_LIGHTHOUSE_QUORUM_RULES_H_
