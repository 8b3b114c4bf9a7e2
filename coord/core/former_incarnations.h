// SPDX-License-Identifier: Apache-2.0
// FormerIncarnations: the processes of a coordinator's earlier jobs, to detect their late calls.
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
// and continue as if its own job still existed; its incarnation distinguishes it from the current
// one. Incarnation 0 means that the client does not send one, and is not recorded.
class FormerIncarnations final {
 public:
  // The table keeps this many of the latest: 64 jobs of 4096 tasks, in at most 16 MiB or so. Of a
  // larger job, at least the last one is kept completely.
  static constexpr size_t kMaxIncarnations = size_t{1} << 18;

  // `tasks`: the number of tasks per job.
  explicit FormerIncarnations(size_t tasks)
      : max_incarnations_(std::max(kMaxIncarnations, 2 * tasks)) {}

  // Records that `incarnation` of `task` was connected in job `epoch`.
  void Add(TaskId task, Incarnation incarnation, int64_t epoch);
  // Returns the last job in which it was connected; 0 if unknown.
  int64_t EpochOf(TaskId task, Incarnation incarnation) const;

  size_t size() const { return epochs_.size(); }
  void AddTableSizes(TableSizes& sizes) const;

 private:
  using Key = std::pair<TaskId, Incarnation>;

  const size_t max_incarnations_;
  absl::flat_hash_map<Key, int64_t> epochs_;
  // In order of first insertion.
  std::deque<Key> oldest_first_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_FORMER_INCARNATIONS_H_
