// SPDX-License-Identifier: Apache-2.0
// Jobs: translates between a client's (job name, number) and dense task ids.
#ifndef FERRY_COORD_CORE_JOBS_H_
#define FERRY_COORD_CORE_JOBS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "coord/core/options.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Immutable. Task ids number the first job's tasks, then the second's, ...
class Jobs final {
 public:
  //   Errors: INVALID_ARGUMENT for an empty or repeated name, or a count outside 1..1,000,000.
  static absl::StatusOr<Jobs> Create(std::vector<JobSpec> specs);

  int size() const { return size_; }
  bool Contains(TaskId task) const { return task.value() >= 0 && task.value() < size_; }
  bool HasJob(absl::string_view job) const;

  // Errors: INVALID_ARGUMENT, naming the valid ones, if the job or the number is not part of it.
  absl::StatusOr<TaskId> Resolve(absl::string_view job, int64_t number) const;
  // For clients that send only numbers.
  absl::StatusOr<TaskId> Resolve(int64_t number) const;

  // The job's name and the task's number in it. REQUIRES: Contains(task).
  std::pair<absl::string_view, int> Locate(TaskId task) const;

  // "/job:worker/replica:0/task:3".
  std::string Name(TaskId task) const;
  // "3-6,17", or with several jobs "worker 3-6; ps 0". Bounded in length.
  std::string Ranges(absl::Span<const TaskId> tasks) const;

 private:
  explicit Jobs(std::vector<JobSpec> specs);

  std::vector<JobSpec> specs_;
  int size_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_JOBS_H_
