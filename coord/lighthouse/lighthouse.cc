// SPDX-License-Identifier: Apache-2.0
// The replica table and pending calls.
#include "coord/lighthouse/lighthouse.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {
namespace {

size_t BytesOf(const QuorumMember& member) {
  return sizeof(member) + member.replica_id.size() + member.address.size() + member.encoded.size();
}

}  // namespace

absl::Status Lighthouse::CheckRunning() const {
  if (!is_stopped_) return absl::OkStatus();
  return absl::UnavailableError("the coordinator is stopping");
}

absl::StatusOr<Lighthouse::Replica*> Lighthouse::Touch(absl::string_view replica_id) {
  FERRY_RETURN_IF_ERROR(CheckRunning());
  const absl::Time now = clock_.Now();
  auto found = replicas_.find(replica_id);
  if (found == replicas_.end()) {
    if (replica_id.size() > options_.max_id_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the replica id ", Quoted(replica_id), " has ", replica_id.size(),
                       " bytes, over the limit of ", options_.max_id_bytes));
    }
    if (replicas_.size() >= options_.max_replicas) RemoveSilentReplicas(options_.heartbeat_timeout);
    if (replicas_.size() >= options_.max_replicas) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot add replica ", Quoted(replica_id), ": ", options_.max_replicas,
                       " replicas, which is the limit, send heartbeats to this lighthouse; use "
                       "another one for it"));
    }
    if (replicas_.empty()) next_tick_ = now + options_.quorum_tick;
    is_unused_ = false;
    found = replicas_.emplace(std::string(replica_id), Replica()).first;
    FERRY_LOG_INFO(kCoord, "lighthouse: new replica: replica={}", Quoted(replica_id));
  }
  found->second.last_heartbeat = now;
  return &found->second;
}

absl::Status Lighthouse::CheckRoom(const QuorumMember& member) const {
  if (member.encoded.size() > options_.max_member_bytes ||
      member.address.size() > options_.max_member_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the QuorumMember of replica ", Quoted(member.replica_id), " has ",
        std::max(member.encoded.size(), member.address.size()), " bytes, over the limit of ",
        options_.max_member_bytes, "; pass less `data`"));
  }
  if (pending_bytes_ + previous_bytes_ + BytesOf(member) > options_.max_pending_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the pending Quorum calls hold ", pending_bytes_, " bytes, and the one of replica ",
        Quoted(member.replica_id), " would exceed the limit of ", options_.max_pending_bytes,
        "; pass less `data`"));
  }
  return absl::OkStatus();
}

WaitId Lighthouse::Join(QuorumMember member, absl::Duration timeout, JoinCallback done) {
  absl::Status room = CheckRoom(member);
  absl::StatusOr<Replica*> touched = room.ok() ? Touch(member.replica_id) : room;
  if (!touched.ok()) {
    completions_.Post(std::move(done), absl::StatusOr<QuorumPtr>(touched.status()));
    return kNoWait;
  }
  Replica& replica = **touched;
  if (replica.calls.size() >= options_.max_calls_of_replica) {
    Finish(replica, replica.calls.begin()->first,
           absl::AbortedError(absl::StrCat("replica ", Quoted(member.replica_id), " has ",
                                           options_.max_calls_of_replica,
                                           " later Quorum calls pending")));
  }
  const absl::Time now = clock_.Now();
  const absl::Time deadline = now + std::clamp(timeout, absl::ZeroDuration(), options_.max_wait);
  const WaitId wait = ids_.Next(WaitKind::kQuorum);
  pending_bytes_ += BytesOf(member);
  waits_.emplace(wait, member.replica_id);
  deadlines_.emplace(deadline, wait);
  replica.calls.emplace(wait, Call{.member = std::move(member),
                                   .since = now,
                                   .joined = now,
                                   .deadline = deadline,
                                   .done = std::move(done)});
  Evaluate();
  return waits_.contains(wait) ? wait : kNoWait;
}

absl::Status Lighthouse::Heartbeat(absl::string_view replica_id) {
  return Touch(replica_id).status();
}

void Lighthouse::Finish(Replica& replica, WaitId wait, absl::StatusOr<QuorumPtr> answer) {
  const auto call = replica.calls.find(wait);
  pending_bytes_ -= BytesOf(call->second.member);
  deadlines_.erase({call->second.deadline, wait});
  waits_.erase(wait);
  completions_.Post(std::move(call->second.done), std::move(answer));
  replica.calls.erase(call);
}

bool Lighthouse::Cancel(WaitId wait) {
  const auto found = waits_.find(wait);
  if (found == waits_.end()) return false;
  Finish(replicas_.find(found->second)->second, wait,
         absl::CancelledError("the caller cancelled the wait for a quorum"));
  return true;
}

void Lighthouse::Stop() {
  is_stopped_ = true;
  while (!waits_.empty()) {
    const auto& [wait, id] = *waits_.begin();
    Finish(replicas_.find(id)->second, wait, CheckRunning());
  }
  replicas_.clear();
}

void Lighthouse::ExtendHeartbeatDeadlines(absl::Duration stalled) {
  const absl::Time now = clock_.Now();
  for (auto& [id, replica] : replicas_) {
    replica.last_heartbeat = std::min(now, replica.last_heartbeat + stalled);
  }
}

absl::Time Lighthouse::NextDeadline() const {
  if (is_stopped_ || replicas_.empty()) return absl::InfiniteFuture();
  return deadlines_.empty() ? next_tick_ : std::min(next_tick_, deadlines_.begin()->first);
}

void Lighthouse::Advance() {
  if (is_stopped_ || replicas_.empty()) return;
  const absl::Time now = clock_.Now();
  Evaluate();
  ExpireCalls();
  if (now < next_tick_) return;
  next_tick_ = now + options_.quorum_tick;
  RemoveSilentReplicas(options_.forget_after);
}

void Lighthouse::ExpireCalls() {
  const absl::Time now = clock_.Now();
  if (deadlines_.empty() || deadlines_.begin()->first > now) return;
  // Before any of them ends, since each counts as joined for the others.
  const std::vector<ReplicaView> views = Views();
  const QuorumDecision decision = DecideQuorum(views, previous_.get(), options_, now);
  const std::string why = decision.obstacle == QuorumObstacle::kNone
                              ? "it is about to be formed"
                              : DescribeObstacle(decision, views, previous_.get(), options_, now);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const WaitId wait = deadlines_.begin()->second;
    Replica& replica = replicas_.find(waits_.find(wait)->second)->second;
    const Call& call = replica.calls.find(wait)->second;
    absl::Status late = absl::DeadlineExceededError(
        absl::StrCat("replica ", Quoted(call.member.replica_id), " waited ",
                     ShortDuration(call.deadline - call.since), " for a quorum: ", why));
    FERRY_LOG_INFO(kCoord, "lighthouse: {}", late.message());
    Finish(replica, wait, std::move(late));
  }
}

void Lighthouse::RemoveSilentReplicas(absl::Duration silence) {
  const absl::Time now = clock_.Now();
  for (auto it = replicas_.begin(); it != replicas_.end();) {
    const bool is_gone = it->second.calls.empty() && now - it->second.last_heartbeat >= silence;
    it = is_gone ? replicas_.erase(it) : std::next(it);
  }
}

std::vector<ReplicaView> Lighthouse::Views() const {
  std::vector<ReplicaView> views;
  views.reserve(replicas_.size());
  for (const auto& [id, replica] : replicas_) {
    ReplicaView& view = views.emplace_back(ReplicaView{id, replica.last_heartbeat});
    if (replica.calls.empty()) continue;
    const Call& latest = replica.calls.rbegin()->second;
    view.joined = &latest.member;
    view.joined_at = latest.joined;
  }
  return views;
}

void Lighthouse::Evaluate() {
  if (waits_.empty()) return;
  const std::vector<ReplicaView> views = Views();
  const QuorumDecision decision = DecideQuorum(views, previous_.get(), options_, clock_.Now());
  if (decision.obstacle == QuorumObstacle::kNone) FormQuorum(decision.members);
}

void Lighthouse::FormQuorum(const std::vector<const QuorumMember*>& members) {
  const bool is_same =
      previous_ != nullptr &&
      std::equal(members.begin(), members.end(), previous_->members.begin(),
                 previous_->members.end(), [](const QuorumMember* one, const QuorumMember& other) {
                   return one->replica_id == other.replica_id;
                 });
  const bool has_failed =
      std::any_of(members.begin(), members.end(),
                  [](const QuorumMember* member) { return member->commit_failures > 0; });
  // Replica groups reconfigure their process groups when the id changes.
  if (!is_same || has_failed) ++last_quorum_id_;
  auto quorum = std::make_shared<Quorum>();
  quorum->id = last_quorum_id_;
  quorum->created = clock_.Now();
  quorum->members.reserve(members.size());
  for (const QuorumMember* member : members) quorum->members.push_back(*member);
  previous_ = std::move(quorum);
  previous_bytes_ = 0;
  for (const QuorumMember& member : previous_->members) {
    previous_bytes_ += BytesOf(member);
    Replica& replica = replicas_.find(member.replica_id)->second;
    while (!replica.calls.empty()) Finish(replica, replica.calls.begin()->first, previous_);
  }
  // The remaining calls wait for the next quorum as if they had just joined.
  for (const auto& [wait, id] : waits_) {
    replicas_.find(id)->second.calls.find(wait)->second.joined = previous_->created;
  }
  if (is_same && !has_failed) {
    FERRY_LOG_DEBUG(kCoord, "lighthouse: the same quorum: id={}", previous_->id);
  } else {
    FERRY_LOG_INFO(kCoord, "lighthouse: new quorum: id={} replicas={} waiting={}{}", previous_->id,
                   previous_->members.size(), waits_.size(),
                   has_failed ? " after failed commits" : "");
  }
}

LighthouseReport Lighthouse::Report(size_t max_replicas) const {
  LighthouseReport report;
  report.is_unused = is_unused_;
  if (is_unused_) return report;
  const absl::Time now = clock_.Now();
  absl::btree_map<absl::string_view, ReplicaReport> replicas;
  if (previous_ != nullptr) {
    report.quorum_id = previous_->id;
    report.quorum_size = previous_->members.size();
    report.quorum_age = now - previous_->created;
    for (const QuorumMember& member : previous_->members) {
      replicas[member.replica_id] = {.address = member.address,
                                     .step = member.step,
                                     .is_in_quorum = true,
                                     .heartbeat_age = absl::InfiniteDuration()};
    }
  }
  const std::vector<ReplicaView> views = Views();
  for (const ReplicaView& view : views) {
    ReplicaReport& replica = replicas[view.id];
    replica.heartbeat_age = now - view.last_heartbeat;
    replica.is_healthy = replica.heartbeat_age < options_.heartbeat_timeout;
    if (view.joined == nullptr) continue;
    replica.address = view.joined->address;
    replica.step = view.joined->step;
    replica.has_joined = true;
    // Counted from its oldest pending call.
    replica.joined_for = now - replicas_.find(view.id)->second.calls.begin()->second.since;
  }
  report.replica_count = replicas.size();
  for (auto& [id, replica] : replicas) {
    if (report.replicas.size() == max_replicas) break;
    replica.id = std::string(id);
    report.replicas.push_back(std::move(replica));
  }
  if (waits_.empty()) return report;
  const QuorumDecision decision = DecideQuorum(views, previous_.get(), options_, now);
  report.waits_for = decision.obstacle == QuorumObstacle::kNone
                         ? "a quorum is about to be formed"
                         : DescribeObstacle(decision, views, previous_.get(), options_, now);
  return report;
}

void Lighthouse::AddTableSizes(TableSizes& sizes) const {
  size_t calls = 0;
  for (const auto& [id, replica] : replicas_) calls += replica.calls.size();
  sizes["lighthouse.replicas"] = replicas_.size();
  sizes["lighthouse.calls"] = calls;
  sizes["lighthouse.waits"] = waits_.size();
  sizes["lighthouse.deadlines"] = deadlines_.size();
  sizes["lighthouse.pending_bytes"] = pending_bytes_;
}

}  // namespace ferry::coord
