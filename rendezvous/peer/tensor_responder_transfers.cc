// SPDX-License-Identifier: Apache-2.0
// Exposed tensors that were not received yet, and their outcome.
#include <bit>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "rendezvous/peer/tensor_responder.h"

namespace ferry {

absl::Status TensorResponder::Named(const absl::Status& why) const {
  return absl::Status(
      why.code(), absl::StrCat(Describe(exchange_.self.peer), " cannot send it: ", why.message()));
}

void TensorResponder::Unstage(uint64_t id) {
  // Destroyed after the lock is released: it may hold the last reference to the request.
  Offered unstaged;
  SpinLockHolder lock(&mu_);
  const auto found = offered_.find(id);
  if (found == offered_.end() || found->second.transport != kStaging) return;
  unstaged = std::move(found->second);
  offered_.erase(found);
}

bool TensorResponder::Outlives(const Offered& offered) const {
  return offered.transport != kStaging && offered.is_told &&
         (*exchange_.transports)[offered.transport]->outlives_producer();
}

void TensorResponder::Lose(const Request& request, const absl::Status& why) {
  exchange_.manager->RecordSendFailure(request.step_id, request.key, why);
  Refuse(request.id, why);
}

void TensorResponder::RecordSendFailure(const Request& request, const absl::Status& why) {
  // A consumer that leaves in an orderly way loses nothing.
  if (why.ok() || absl::IsCancelled(why)) return;
  exchange_.manager->RecordSendFailure(request.step_id, request.key, why);
}

PathQuery TensorResponder::Query(size_t bytes, bool is_in_arena, absl::Time now) const {
  PathQuery query;
  query.source = &exchange_.self;
  query.destination = &consumer_;
  query.channel_passes_descriptors = channel_->passes_descriptors();
  if (!query.channel_passes_descriptors)
    query.descriptors_unavailable_reason = descriptors_unavailable_reason_;
  query.bytes = bytes;
  query.is_in_arena = is_in_arena;
  query.estimates = ping_->costs().get();
  query.now = now;
  return query;
}

void TensorResponder::LogPath(const PathQuery& query, absl::string_view path) {
  // The path depends on the size: a size 16 times as large is another kind.
  const auto magnitude = static_cast<uint32_t>(std::bit_width(query.bytes) / 4);
  const auto place = [](const TensorLocation& where) {
    return where.space == MemorySpace::kHost ? 0u : 1u + static_cast<uint32_t>(where.ordinal);
  };
  const std::tuple<uint32_t, uint32_t, uint32_t, bool> kind(magnitude, place(query.source_location),
                                                            place(query.destination_location),
                                                            query.is_in_arena);
  {
    SpinLockHolder lock(&mu_);
    std::string& last = logged_paths_[kind];
    if (last == path) return;
    last = std::string(path);
  }
  std::string why = "small enough for the descriptor itself";
  if (path != "inline") {
    const absl::StatusOr<PathExplanation> choice =
        ExplainPath(*exchange_.transports, query, exchange_.policy);
    why = choice.ok() ? Explain(*choice) : choice.status().ToString();
  }
  FERRY_LOG_DEBUG(kTransport, "path chosen: peer={} path={} bytes={} from={} to={}: {}",
                  consumer_.peer.node_id, path, query.bytes, ToString(query.source_location),
                  ToString(query.destination_location), why);
}

absl::StatusOr<PathExplanation> TensorResponder::PathTo(size_t bytes, bool is_in_arena) const {
  const absl::Time now = exchange_.clock->Now();
  ping_->Refresh(*channel_, now);
  return ExplainPath(*exchange_.transports, Query(bytes, is_in_arena, now), exchange_.policy);
}

absl::Status TensorResponder::OnRejected(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const RejectedMessage rejected, DecodeRejected(body));
  const absl::Status why(rejected.status.code(),
                         absl::StrCat(Describe(consumer_.peer), " did not take what it was sent: ",
                                      rejected.status.message()));
  RequestPtr request;
  {
    SpinLockHolder lock(&mu_);
    const auto found = offered_.find(rejected.id);
    if (found != offered_.end()) request = found->second.request;
  }
  FERRY_LOG_DEBUG(kTransport, "tensor rejected: peer={} step={} request={} reason={} key={}",
                  consumer_.peer.node_id, request != nullptr ? request->step_id : rejected.step_id,
                  rejected.id, rejected.status,
                  absl::CEscape(request != nullptr ? request->key.text() : rejected.key));
  // Before its operation ends: the thread waiting for that then asks what was lost.
  if (request != nullptr) {
    RecordSendFailure(*request, why);
  } else if (!rejected.key.empty()) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, RendezvousKey::Parse(rejected.key));
    if (key.dst().task.task != consumer_.peer.node_id) {
      return absl::InvalidArgumentError("REJECTED for a value of somebody else");
    }
    exchange_.manager->RecordSendFailure(rejected.step_id, key, why);
  }
  OnDone(rejected.id, /*was_taken=*/false);
  return absl::OkStatus();
}

std::optional<uint64_t> TensorResponder::StartFlush(int64_t step_id, StepOperation operation) {
  AckTracker::Flush flush;
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return std::nullopt;
    flush = answers_.Start(step_id);
    // Its PONG may arrive before this returns.
    if (flush.is_awaited) flushes_.emplace_back(flush.number, std::move(operation));
  }
  if (flush.needs_ping &&
      !SendId(*channel_, PeerMessageType::kPing, LatencyProbe::kForeignIds + flush.number).ok()) {
    // The operations end after the lock is released.
    std::vector<StepOperation> ended;
    SpinLockHolder lock(&mu_);
    answers_.OnLost(flush.number);
    ended = TakeFlushed();
    return std::nullopt;
  }
  return flush.is_awaited ? std::optional(flush.number) : std::nullopt;
}

bool TensorResponder::IsFlushed(uint64_t flush) const {
  SpinLockHolder lock(&mu_);
  return !closed_.ok() || answers_.IsOver(flush);
}

void TensorResponder::GiveUpFlush(uint64_t flush) {
  SpinLockHolder lock(&mu_);
  answers_.GiveUp(flush);
}

absl::Status TensorResponder::OnFlushed(uint64_t id) {
  // The operations end after the lock is released.
  std::vector<StepOperation> ended;
  SpinLockHolder lock(&mu_);
  FERRY_RETURN_IF_ERROR(answers_.OnPong(id - LatencyProbe::kForeignIds));
  ended = TakeFlushed();
  return absl::OkStatus();
}

std::vector<StepOperation> TensorResponder::TakeFlushed() {
  std::vector<StepOperation> ended;
  std::vector<std::pair<uint64_t, StepOperation>> left;
  for (auto& [number, operation] : flushes_) {
    if (answers_.IsOver(number)) {
      ended.push_back(std::move(operation));
    } else {
      left.emplace_back(number, std::move(operation));
    }
  }
  flushes_.swap(left);
  return ended;
}

absl::Status TensorResponder::closed() const {
  SpinLockHolder lock(&mu_);
  return closed_;
}

void TensorResponder::OnClosed(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, RequestPtr> waiting;
  absl::flat_hash_map<uint64_t, Offered> offered;
  std::vector<std::pair<uint64_t, StepOperation>> flushes;
  {
    SpinLockHolder lock(&mu_);
    closed_ = why;
    waiting.swap(waiting_);
    offered = offered_;
    flushes.swap(flushes_);
  }
  for (const auto& [id, request] : waiting) request->cancellation.Cancel();
  for (const auto& [id, each] : offered) {
    // For views it is unknown whether they were received.
    if (!Outlives(each)) RecordSendFailure(*each.request, why);
  }
  // Removed from the list once their outcome is recorded, and their operations end after that: the
  // thread closing the step waits for those, and then asks what was lost. Nothing is added any
  // more.
  {
    SpinLockHolder lock(&mu_);
    offered_.clear();
  }
  for (const auto& sender : senders_) sender->Abort(why);
}

size_t TensorResponder::unfinished() const {
  SpinLockHolder lock(&mu_);
  size_t count = 0;
  for (const auto& [id, offered] : offered_) count += Outlives(offered) ? 0 : 1;
  return count;
}

void TensorResponder::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  std::vector<Offered> offered;
  {
    SpinLockHolder lock(&mu_);
    offered.reserve(offered_.size());
    for (const auto& [id, each] : offered_) offered.push_back(each);
  }
  const absl::Time now = SteadyClock().CoarseNow();
  for (const Offered& each : offered) {
    const absl::Duration age = now - each.since;
    if (age < min_age) continue;
    const std::string peer = Describe(consumer_.peer);
    const auto name = [&] { return (*exchange_.transports)[each.transport]->name(); };
    std::string phase =
        each.transport == kStaging ? absl::StrCat("being copied out of a GPU's memory for ", peer)
        : Outlives(each)
            ? absl::StrCat("lent to ", peer, " by ", name(), "; not given back yet")
            : absl::StrCat("being sent to ", peer, " by ", name(), "; not all there yet");
    if (each.transport != kStaging) {
      const std::string obstacle = senders_[each.transport]->Obstacle();
      if (!obstacle.empty()) absl::StrAppend(&phase, ", since ", obstacle);
    }
    visit({.step_id = each.request->step_id,
           .key = each.request->key,
           .side = PendingStepOp::Side::kTransfer,
           .bytes = each.tensor_bytes,
           .age = age,
           .phase = std::move(phase),
           .outlives_sender = Outlives(each)});
  }
}

TableSizes TensorResponder::InnerTableSizes() const {
  SpinLockHolder lock(&mu_);
  size_t staging = 0;
  size_t views = 0;
  for (const auto& [id, offered] : offered_) {
    staging += offered.transport == kStaging ? 1 : 0;
    views += Outlives(offered) ? 1 : 0;
  }
  return {{"server.waiting", waiting_.size()},
          {"server.offered", offered_.size()},
          {"server.staging", staging},
          {"server.views", views},
          {"server.flushes", flushes_.size()}};
}

}  // namespace ferry
