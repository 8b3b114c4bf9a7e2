// SPDX-License-Identifier: Apache-2.0
// The rules of a quorum, and messages that explain why one is not met.
#include "coord/lighthouse/quorum_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry::coord {
namespace {

constexpr size_t kMaxNames = 8;

bool IsHealthy(const ReplicaView& replica, const LighthouseOptions& options, absl::Time now) {
  return now - replica.last_heartbeat < options.heartbeat_timeout;
}

// "a" (details), "b" (details) and 3 more
class NameList final {
 public:
  void Add(absl::string_view name, absl::string_view details) {
    if (++count_ > kMaxNames) return;
    absl::StrAppend(&text_, text_.empty() ? "" : ", ", Quoted(name), " (", details, ")");
  }
  // Adds "; LABEL: NAMES".
  void AppendTo(std::string& out, absl::string_view label) const {
    if (count_ == 0) return;
    absl::StrAppend(&out, "; ", label, ": ", text_);
    if (count_ > kMaxNames) absl::StrAppend(&out, " and ", count_ - kMaxNames, " more");
  }

 private:
  std::string text_;
  size_t count_ = 0;
};

// "1 replica", "3 replicas"
std::string Replicas(size_t count) {
  return absl::StrCat(count, count == 1 ? " replica" : " replicas");
}

std::string Reason(const QuorumDecision& decision, const Quorum* previous,
                   const LighthouseOptions& options, absl::Time now) {
  const absl::string_view have = decision.joined == 1 ? " has" : " have";
  switch (decision.obstacle) {
    case QuorumObstacle::kTooFewReplicas:
      return absl::StrCat(decision.joined, " of the replicas that send heartbeats", have,
                          " joined, but the minimum is ", options.min_replicas,
                          ": start more replicas, or lower --lighthouse-min-replicas");
    case QuorumObstacle::kMinority:
      return absl::StrCat(decision.joined, " of ", Replicas(decision.healthy),
                          " that send heartbeats", have,
                          " joined, but more than half must, to avoid a split brain: check why the "
                          "others do not call Quorum");
    case QuorumObstacle::kStragglers:
      return absl::StrCat(Replicas(decision.joined), have,
                          " joined and can form a quorum, but wait for up to ",
                          ShortDuration(decision.join_deadline - now),
                          " more for the others that send heartbeats (--lighthouse-join-timeout)");
    case QuorumObstacle::kNoPreviousMember:
      return absl::StrCat("a replica has set shrink_only, and none of the ", decision.joined,
                          " that have joined was in quorum ", previous->id,
                          ": join without shrink_only, or restart members of that quorum");
    case QuorumObstacle::kNone:
      break;
  }
  return "";
}

}  // namespace

QuorumDecision DecideQuorum(absl::Span<const ReplicaView> replicas, const Quorum* previous,
                            const LighthouseOptions& options, absl::Time now) {
  QuorumDecision decision;
  bool shrink_only = false;
  absl::Time first_joined = absl::InfiniteFuture();
  for (const ReplicaView& replica : replicas) {
    if (!IsHealthy(replica, options, now)) continue;
    ++decision.healthy;
    if (replica.joined == nullptr) continue;
    decision.members.push_back(replica.joined);
    shrink_only |= replica.joined->shrink_only;
    first_joined = std::min(first_joined, replica.joined_at);
  }
  decision.joined = decision.members.size();
  decision.join_deadline = first_joined + options.join_timeout;

  bool is_fast = false;
  if (previous != nullptr) {
    // Both lists are ordered by id.
    std::vector<const QuorumMember*> again;
    auto candidate = decision.members.begin();
    for (const QuorumMember& member : previous->members) {
      while (candidate != decision.members.end() && (*candidate)->replica_id < member.replica_id) {
        ++candidate;
      }
      if (candidate == decision.members.end()) break;
      if ((*candidate)->replica_id == member.replica_id) again.push_back(*candidate);
    }
    is_fast = again.size() == previous->members.size();
    if (shrink_only) decision.members = std::move(again);
  }

  if (is_fast) return decision;
  if (decision.joined < std::max<size_t>(options.min_replicas, 1)) {
    decision.obstacle = QuorumObstacle::kTooFewReplicas;
  } else if (decision.joined <= decision.healthy / 2) {
    decision.obstacle = QuorumObstacle::kMinority;
  } else if (decision.joined < decision.healthy && now < decision.join_deadline) {
    decision.obstacle = QuorumObstacle::kStragglers;
  } else if (decision.members.empty()) {
    decision.obstacle = QuorumObstacle::kNoPreviousMember;
  }
  if (decision.obstacle != QuorumObstacle::kNone) decision.members.clear();
  return decision;
}

std::string DescribeObstacle(const QuorumDecision& decision, absl::Span<const ReplicaView> replicas,
                             const Quorum* previous, const LighthouseOptions& options,
                             absl::Time now) {
  std::string text = Reason(decision, previous, options, now);
  NameList not_joined;
  NameList joined_but_silent;
  NameList gone;
  for (const ReplicaView& replica : replicas) {
    const std::string age = ShortDuration(now - replica.last_heartbeat);
    if (replica.joined == nullptr) {
      if (IsHealthy(replica, options, now)) {
        not_joined.Add(replica.id, absl::StrCat("last heartbeat ", age, " ago"));
      }
    } else if (!IsHealthy(replica, options, now)) {
      joined_but_silent.Add(replica.id, absl::StrCat("for ", age));
    }
  }
  if (previous != nullptr) {
    size_t place = 0;
    for (const QuorumMember& member : previous->members) {
      while (place < replicas.size() && replicas[place].id < member.replica_id) ++place;
      if (place == replicas.size() || replicas[place].id != member.replica_id) {
        gone.Add(member.replica_id, "forgotten");
      } else if (!IsHealthy(replicas[place], options, now) && replicas[place].joined == nullptr) {
        gone.Add(member.replica_id,
                 absl::StrCat("for ", ShortDuration(now - replicas[place].last_heartbeat)));
      }
    }
  }
  not_joined.AppendTo(text, "not joined");
  joined_but_silent.AppendTo(text, "joined, but without heartbeats");
  if (previous != nullptr) {
    gone.AppendTo(text, absl::StrCat("silent members of quorum ", previous->id));
  }
  return text;
}

}  // namespace ferry::coord
