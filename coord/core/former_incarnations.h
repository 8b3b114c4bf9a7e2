// SPDX-License-Identifier: Apache-2.0
// FormerIncarnations: the processes that belonged to a coordinator's jobs, so that late calls are
// recognized.
#ifndef FERRY_COORD_CORE_FORMER_INCARNATIONS_H_
#define FERRY_COORD_CORE_FORMER_INCARNATIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "base/table_sizes.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Not thread-safe: part of a Coordinator. A process that was stopped can resume during a later job
// and continue as if its own job still existed; its incarnation tells it from the present one.
// Incarnation 0 is that of a client which does not send one, and is not remembered.
class FormerIncarnations final {
 public:
  // The table keeps this many of the latest: 64 jobs of 4096 tasks, in at most 16 MiB or so. Of a
  // larger job, at least the last one is remembered as a whole.
  static constexpr size_t kMaxIncarnations = size_t{1} << 18;

  // `tasks`: how many one job has.
  explicit FormerIncarnations(size_t tasks)
      : max_incarnations_(std::max(kMaxIncarnations, 2 * tasks)) {}

  // `incarnation` of `task` was connected in the job `epoch`.
  void Add(TaskId task, Incarnation incarnation, int64_t epoch);
  // The last job in which it was connected; 0 if none is known.
  int64_t EpochOf(TaskId task, Incarnation incarnation) const;

  size_t size() const { return epochs_.size(); }
  void AddTableSizes(TableSizes& sizes) const;

 private:
  using Key = std::pair<TaskId, Incarnation>;

  const size_t max_incarnations_;
  absl::flat_hash_map<Key, int64_t> epochs_;
  // In the order in which they were added first.
  std::deque<Key> oldest_first_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_FORMER_INCARNATIONS_H_
