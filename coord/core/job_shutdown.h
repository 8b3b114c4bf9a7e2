// SPDX-License-Identifier: Apache-2.0
// JobShutdown: tasks that leave the job, one by one or all together at the shutdown barrier.
#ifndef FERRY_COORD_CORE_JOB_SHUTDOWN_H_
#define FERRY_COORD_CORE_JOB_SHUTDOWN_H_

#include <string>

#include "absl/status/status.h"

#include "base/clock.h"
#include "coord/core/barriers.h"
#include "coord/core/completions.h"
#include "coord/core/job_failure.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Not thread-safe: part of a Coordinator. A job ends normally when every task has arrived at its
// shutdown barrier; if that barrier fails, so does the job.
class JobShutdown final {
 public:
  JobShutdown(const CoordinatorOptions& options, const Clock& clock, const JobIdentity& job,
              Membership& membership, Barriers& barriers, JobFailure& failure)
      : options_(options),
        clock_(clock),
        job_(job),
        membership_(membership),
        barriers_(barriers),
        failure_(failure) {}

  // The shutdown barrier of the current job.
  std::string BarrierId() const;
  // True if `task`, which shuts down, waits for the others; false if it leaves at once.
  bool MustWait(TaskId task) const;
  // Arrives at the shutdown barrier for `task`.
  //   REQUIRES: MustWait(task).
  WaitId Wait(TaskId task, StatusCallback done);
  // `task` leaves now: its pending poll ends and others stop waiting for it at barriers.
  //   Errors: FAILED_PRECONDITION not connected.
  absl::Status Disconnect(TaskId task, const absl::Status& why);
  // Ends or fails the job if its shutdown barrier is over.
  void Settle();
  void BeginNewJob() { is_shutting_down_ = false; }

 private:
  // Constant after construction.
  const CoordinatorOptions& options_;
  const Clock& clock_;
  const JobIdentity& job_;
  Membership& membership_;
  Barriers& barriers_;
  JobFailure& failure_;

  // A task waits at the shutdown barrier.
  bool is_shutting_down_ = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_JOB_SHUTDOWN_H_
