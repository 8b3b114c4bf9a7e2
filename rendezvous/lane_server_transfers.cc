// SPDX-License-Identifier: Apache-2.0
// What has been offered and not been taken, and what becomes of it in the end.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "rendezvous/lane_server.h"

namespace ferry {

void LaneServer::Lose(const Request& request, const absl::Status& why) {
  exchange_.manager->NoteLost(request.step_id, request.key, why);
  Refuse(request.id, why);
}

void LaneServer::NoteLost(const Request& request, const absl::Status& why) {
  // Who leaves loses nothing.
  if (why.ok() || absl::IsCancelled(why)) return;
  exchange_.manager->NoteLost(request.step_id, request.key, why);
}

absl::Status LaneServer::closed() const {
  SpinLockHolder lock(&mu_);
  return closed_;
}

void LaneServer::OnClosed(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, RequestPtr> waiting;
  absl::flat_hash_map<uint64_t, Offered> offered;
  {
    SpinLockHolder lock(&mu_);
    closed_ = why;
    waiting.swap(waiting_);
    offered.swap(offered_);
  }
  for (const auto& [id, request] : waiting) request->cancellation.Cancel();
  for (const auto& [id, each] : offered) {
    // Of views nobody can tell whether they were taken.
    if (!Outlives(each)) NoteLost(*each.request, why);
  }
  for (const auto& outlet : outlets_) outlet->Abort(why);
}

size_t LaneServer::unfinished() const {
  SpinLockHolder lock(&mu_);
  size_t count = 0;
  for (const auto& [id, offered] : offered_) count += Outlives(offered) ? 0 : 1;
  return count;
}

void LaneServer::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
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
    visit({.step_id = each.request->step_id,
           .key = each.request->key,
           .side = PendingStepOp::Side::kTransfer,
           .bytes = each.tensor_bytes,
           .age = age,
           .phase = std::move(phase),
           .outlives_sender = Outlives(each)});
  }
}

}  // namespace ferry
