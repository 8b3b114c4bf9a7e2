// SPDX-License-Identifier: Apache-2.0
// A bounded table of incarnations.
#include "coord/core/former_incarnations.h"

namespace ferry::coord {

void FormerIncarnations::Add(TaskId task, Incarnation incarnation, int64_t epoch) {
  if (incarnation == Incarnation()) return;
  const auto [entry, is_new] = epochs_.insert_or_assign({task, incarnation}, epoch);
  if (!is_new) return;
  oldest_first_.emplace_back(task, incarnation);
  if (epochs_.size() <= max_incarnations_) return;
  epochs_.erase(oldest_first_.front());
  oldest_first_.pop_front();
}

int64_t FormerIncarnations::EpochOf(TaskId task, Incarnation incarnation) const {
  const auto found = epochs_.find({task, incarnation});
  return found == epochs_.end() ? 0 : found->second;
}

void FormerIncarnations::AddTableSizes(TableSizes& sizes) const {
  sizes["former_incarnations"] = epochs_.size();
  sizes["former_incarnations.oldest_first"] = oldest_first_.size();
}

}  // namespace ferry::coord
