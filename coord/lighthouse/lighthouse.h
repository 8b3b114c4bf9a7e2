// SPDX-License-Identifier: Apache-2.0
// Lighthouse: the state of torchft's Lighthouse: replicas, their heartbeats, and pending Quorum
// calls.
#ifndef FERRY_COORD_LIGHTHOUSE_LIGHTHOUSE_H_
#define FERRY_COORD_LIGHTHOUSE_LIGHTHOUSE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/types.h"
#include "coord/lighthouse/quorum_rules.h"

namespace ferry::coord {

// A replica, for status reports.
struct ReplicaReport {
  std::string id;
  // From its pending call; otherwise from the quorum.
  std::string address;
  int64_t step = 0;
  bool is_in_quorum = false;
  // A Quorum call is pending, for this long.
  bool has_joined = false;
  absl::Duration joined_for;
  // Its last heartbeat is younger than heartbeat_timeout.
  bool is_healthy = false;
  // Infinite if the replica has been removed.
  absl::Duration heartbeat_age;
};

struct LighthouseReport {
  // No client has ever called.
  bool is_unused = true;
  // The id of the latest quorum; 0 if there was none.
  int64_t quorum_id = 0;
  size_t quorum_size = 0;
  absl::Duration quorum_age;
  // Why pending Quorum calls have no quorum yet; empty if none is pending.
  std::string waits_for;
  // All known replicas and members of the latest quorum, ordered by id, up to max_replicas; and the
  // number without that limit.
  std::vector<ReplicaReport> replicas;
  size_t replica_count = 0;
};

// Not thread-safe. Pure: time comes from `clock`, and callbacks go to `completions`; both outlive
// it. The rules are those of DecideQuorum.
//
// A replica has joined as long as it has a pending call, so a call that is cancelled or times out
// withdraws it, unless another one is pending. torchft's own server keeps it, and may form a quorum
// with a member that has stopped waiting. A joined replica that is left out of a quorum, because of
// shrink_only or missing heartbeats, keeps waiting as if it had just joined.
class Lighthouse final {
 public:
  using JoinCallback = absl::AnyInvocable<void(absl::StatusOr<QuorumPtr>) &&>;

  Lighthouse(const LighthouseOptions& options, const Clock& clock, Completions& completions)
      : options_(options),
        clock_(clock),
        completions_(completions),
        last_quorum_id_(options_.first_quorum_id - 1) {}
  Lighthouse(const Lighthouse&) = delete;
  Lighthouse& operator=(const Lighthouse&) = delete;

  // Counts as a heartbeat, and waits for a quorum that includes the replica. If a replica has
  // several pending calls, the member of the latest one is used, and all receive the quorum.
  //   Errors: INVALID_ARGUMENT for an id or a member that is too long; RESOURCE_EXHAUSTED for too
  //   many replicas or bytes; DEADLINE_EXCEEDED, with the reason why there is no quorum and the
  //   missing replicas; ABORTED for the oldest of too many calls of the replica; CANCELLED;
  //   UNAVAILABLE after Stop.
  WaitId Join(QuorumMember member, absl::Duration timeout, JoinCallback done);
  //   Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED and UNAVAILABLE as Join.
  absl::Status Heartbeat(absl::string_view replica_id);
  // Ends a pending Join with CANCELLED. Returns false if it has ended already.
  bool Cancel(WaitId wait);
  // Ends all pending calls with UNAVAILABLE; later calls fail with it, too.
  void Stop();
  // Heartbeats could not be received for `stalled` because this process was not running.
  void ExtendHeartbeatDeadlines(absl::Duration stalled);

  // When Advance must be called next; InfiniteFuture if nothing depends on the time.
  absl::Time NextDeadline() const;
  void Advance();

  LighthouseReport Report(size_t max_replicas) const;
  size_t wait_count() const { return waits_.size(); }
  // Adds the sizes "lighthouse.*".
  void AddTableSizes(TableSizes& sizes) const;

 private:
  struct Call {
    QuorumMember member;
    absl::Time since;
    // When it joined: `since`, or the time of the last quorum that was formed without it.
    absl::Time joined;
    absl::Time deadline;
    JoinCallback done;
  };
  struct Replica {
    absl::Time last_heartbeat;
    // Ordered by arrival.
    absl::btree_map<WaitId, Call> calls;
  };
  using Replicas = absl::btree_map<std::string, Replica>;

  absl::Status CheckRunning() const;
  // Records a heartbeat, and returns the replica, which is added if it is new.
  //   Errors: as Heartbeat.
  absl::StatusOr<Replica*> Touch(absl::string_view replica_id);
  absl::Status CheckRoom(const QuorumMember& member) const;
  // Removes replicas without pending calls whose last heartbeat is at least `silence` ago.
  void RemoveSilentReplicas(absl::Duration silence);
  // Removes the call and queues its callback.
  void Finish(Replica& replica, WaitId wait, absl::StatusOr<QuorumPtr> answer);
  void ExpireCalls();
  // Forms a quorum if the rules allow one.
  void Evaluate();
  void FormQuorum(const std::vector<const QuorumMember*>& members);
  std::vector<ReplicaView> Views() const;

  // Constant after construction.
  const LighthouseOptions options_;
  const Clock& clock_;
  Completions& completions_;

  WaitIds ids_;
  bool is_stopped_ = false;
  bool is_unused_ = true;
  int64_t last_quorum_id_;
  // The latest quorum.
  QuorumPtr previous_;
  size_t previous_bytes_ = 0;
  Replicas replicas_;
  // The replica of each pending call.
  absl::flat_hash_map<WaitId, std::string> waits_;
  absl::btree_set<std::pair<absl::Time, WaitId>> deadlines_;
  // The total size of the members of pending calls.
  size_t pending_bytes_ = 0;
  // Meaningful while there are replicas.
  absl::Time next_tick_ = absl::InfiniteFuture();
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_LIGHTHOUSE_LIGHTHOUSE_H_
