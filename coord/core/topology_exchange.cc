// SPDX-License-Identifier: Apache-2.0
// Exchanges local topologies for the global one.
#include "coord/core/topology_exchange.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "base/ranges.h"
#include "base/text.h"
#include "coord/core/errors.h"
#include "topology/topology_proto.h"

namespace ferry::coord {

void TopologyExchange::Answer(DoneCallback done, absl::StatusOr<Result> result) {
  if (!result.ok()) result = CoordinationError(result.status());
  completions_.Post(std::move(done), std::move(result));
}

WaitId TopologyExchange::Enumerate(TaskId task, LocalTopology local, absl::Time now,
                                   absl::Time deadline, DoneCallback done, std::string as_told) {
  // The call identifies the task; the id in the message is ignored.
  local.node_id = task.value();
  if (const absl::Status added = nodes_.Add(local); !added.ok()) {
    Answer(std::move(done), added);
    return kNoWait;
  }
  std::string& told = submitted_[static_cast<size_t>(task.value())];
  if (told.empty()) told = std::move(as_told);
  if (result_ == nullptr && nodes_.complete()) {
    absl::StatusOr<GlobalTopology> built = nodes_.Build();
    if (!built.ok()) {
      // E.g. duplicate devices: no task can continue with this set.
      for (auto& [wait, waiting] : waits_) Answer(std::move(waiting.done), built.status());
      waits_.clear();
      deadlines_.clear();
      Remove(task);
      Answer(std::move(done), built.status());
      return kNoWait;
    }
    std::string bytes = SerializeTopology(*built);
    result_ = std::make_shared<const SharedTopology>(
        SharedTopology{*std::move(built), std::move(bytes), submitted_});
    for (auto& [wait, waiting] : waits_) Answer(std::move(waiting.done), result_);
    waits_.clear();
    deadlines_.clear();
  }
  if (result_ != nullptr) {
    Answer(std::move(done), result_);
    return kNoWait;
  }
  const WaitId wait = ids_.Next(WaitKind::kEnumerate);
  deadlines_.emplace(deadline, wait);
  waits_.emplace(wait, Waiting{task, now, deadline, std::move(done)});
  return wait;
}

bool TopologyExchange::Cancel(WaitId wait, const absl::Status& why) {
  const auto it = waits_.find(wait);
  if (it == waits_.end()) return false;
  deadlines_.erase({it->second.deadline, wait});
  Answer(std::move(it->second.done), why);
  waits_.erase(it);
  return true;
}

void TopologyExchange::Remove(TaskId task) {
  nodes_.Remove(task.value());
  submitted_[static_cast<size_t>(task.value())].clear();
}

void TopologyExchange::Forget(TaskId task) {
  Remove(task);
  result_ = nullptr;
}

void TopologyExchange::EndWaits(const absl::Status& why) {
  while (!waits_.empty()) Cancel(waits_.begin()->first, why);
}

void TopologyExchange::Clear(const absl::Status& why) {
  EndWaits(why);
  for (int node = 0; node < jobs_.size(); ++node) Remove(TaskId(node));
  result_ = nullptr;
}

absl::Time TopologyExchange::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

absl::Status TopologyExchange::TimedOut(const Waiting& waiting) const {
  const std::vector<int> missing = nodes_.Missing();
  const std::string ranges = FormatRanges(missing);
  return WithMissingTasks(
      absl::DeadlineExceededError(absl::StrCat(
          "waited ", ShortDuration(waiting.deadline - waiting.since), " for the devices of ",
          missing.size(), " of ", jobs_.size(), " nodes. Missing nodes: ", ranges)),
      ranges);
}

void TopologyExchange::Expire(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const WaitId wait = deadlines_.begin()->second;
    Cancel(wait, TimedOut(waits_.find(wait)->second));
  }
}

void TopologyExchange::ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const {
  if (waits_.empty()) return;
  const std::string what = absl::StrCat("the devices of nodes ", FormatRanges(nodes_.Missing()));
  for (const auto& [wait, waiting] : waits_) visit({waiting.task, what, waiting.since});
}

void TopologyExchange::AddTableSizes(TableSizes& sizes) const {
  sizes["topology.waits"] = waits_.size();
  sizes["topology.deadlines"] = deadlines_.size();
  sizes["topology.nodes"] = static_cast<size_t>(jobs_.size()) - nodes_.Missing().size();
}

}  // namespace ferry::coord
