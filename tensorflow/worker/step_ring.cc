// SPDX-License-Identifier: Apache-2.0
// A queue limited in records and nodes.
#include "tensorflow/worker/step_ring.h"

#include <utility>

#include "absl/container/flat_hash_set.h"

namespace ferry::worker {

void StepRing::Add(StepRecord record) {
  auto kept = std::make_shared<const StepRecord>(std::move(record));
  // Destroyed after the lock is released.
  std::vector<Record> gone;
  absl::MutexLock lock(&mu_);
  nodes_ += kept->times.size();
  records_.push_back(std::move(kept));
  while (records_.size() > max_runs_ || nodes_ > max_nodes_) {
    nodes_ -= records_.front()->times.size();
    gone.push_back(std::move(records_.front()));
    records_.pop_front();
  }
}

std::vector<StepRing::Record> StepRing::Find(absl::Span<const int64_t> step_ids) const {
  const absl::flat_hash_set<int64_t> wanted(step_ids.begin(), step_ids.end());
  std::vector<Record> found;
  absl::MutexLock lock(&mu_);
  for (const Record& record : records_) {
    if (wanted.contains(record->step_id)) found.push_back(record);
  }
  return found;
}

}  // namespace ferry::worker
