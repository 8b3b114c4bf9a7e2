// SPDX-License-Identifier: Apache-2.0
// TaskAdmission: decides which process becomes a task of the job, at once or when all have come.
#ifndef FERRY_COORD_CORE_TASK_ADMISSION_H_
#define FERRY_COORD_CORE_TASK_ADMISSION_H_

#include <optional>

#include "absl/status/status.h"

#include "base/clock.h"
#include "coord/core/barriers.h"
#include "coord/core/completions.h"
#include "coord/core/former_incarnations.h"
#include "coord/core/job_failure.h"
#include "coord/core/join_failures.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/register_barrier.h"
#include "coord/core/topology_exchange.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Not thread-safe: part of a Coordinator. A second incarnation of a connected task replaces the
// first one if the task is recoverable, and fails the job otherwise.
class TaskAdmission final {
 public:
  // The parts that a new incarnation of a task affects.
  struct Parts {
    Membership& membership;
    FormerIncarnations& former_incarnations;
    Barriers& barriers;
    RegisterBarrier& register_barrier;
    TopologyExchange& topology;
    JoinFailures& join_failures;
    JobFailure& failure;
  };

  TaskAdmission(const CoordinatorOptions& options, const Clock& clock, const JobIdentity& job,
                Parts parts)
      : options_(options), clock_(clock), job_(job), parts_(parts) {}

  // Admits or rejects a process that is of no earlier job. Returns the answer to its registration;
  // nothing if it must wait for the others.
  std::optional<absl::Status> Admit(const Registration& registration);
  // Waits at the register barrier. Returns kNoWait if the start of the job fails at once.
  WaitId Wait(Registration registration, StatusCallback done);
  // If the register barrier is over: connects the tasks that waited at it, or fails all tasks.
  void Settle();

 private:
  // Makes the task a connected member in this incarnation.
  void Connect(const Registration& registration);

  // Constant after construction.
  const CoordinatorOptions& options_;
  const Clock& clock_;
  const JobIdentity& job_;
  const Parts parts_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_TASK_ADMISSION_H_
