// SPDX-License-Identifier: Apache-2.0
// FailureDetector: decides by heartbeats and silence which tasks have failed.
#ifndef FERRY_COORD_CORE_FAILURE_DETECTOR_H_
#define FERRY_COORD_CORE_FAILURE_DETECTOR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "coord/core/job_failure.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Not thread-safe: part of a Coordinator. Membership keeps the deadlines; this acts on them, and
// words the errors so that they say how long the task was silent and, if its client was configured
// for another heartbeat timeout than the coordinator's, what to change.
class FailureDetector final {
 public:
  FailureDetector(const CoordinatorOptions& options, const Clock& clock, Membership& membership,
                  JobFailure& failure)
      : options_(options), clock_(clock), membership_(membership), failure_(failure) {}

  // As Coordinator::Heartbeat, for a known task and an incarnation that is of no earlier job. A
  // heartbeat of another incarnation than the connected one fails the task.
  absl::Status Heartbeat(TaskId task, Incarnation incarnation, std::optional<uint64_t> progress);
  // Fails the tasks that have been silent for too long.
  void ExpireSilentTasks(absl::Time now);

 private:
  // A human-readable reason why a silent task is considered dead.
  std::string DescribeDeath(TaskId task, absl::Time now) const;
  // Describes the learned heartbeat interval of the task. Begins with "; " unless it is empty.
  std::string HeartbeatRateText(const Task& task) const;
  // States that the task's heartbeats are too infrequent for this coordinator's heartbeat timeout,
  // and what to do about it.
  std::string HeartbeatsTooRareText(const Task& task, absl::Duration interval) const;

  // Constant after construction.
  const CoordinatorOptions& options_;
  const Clock& clock_;
  Membership& membership_;
  JobFailure& failure_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_FAILURE_DETECTOR_H_
