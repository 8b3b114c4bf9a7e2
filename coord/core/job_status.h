// SPDX-License-Identifier: Apache-2.0
// JobStatus: connected and missing tasks, and pending waits.
#ifndef FERRY_COORD_CORE_JOB_STATUS_H_
#define FERRY_COORD_CORE_JOB_STATUS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "coord/core/types.h"

namespace ferry::coord {

struct WaitStatus {
  // "key \"a/b\"", "barrier \"step\"", ...
  std::string what;
  absl::Duration age;
};

struct TaskStatus {
  int node_id = 0;
  std::string job_name;
  int task_in_job = 0;
  TaskState state = TaskState::kDisconnected;
  // Waiting for the others to join.
  bool is_joining = false;
  uint64_t incarnation = 0;
  // The error that put it into kError.
  absl::Status error;
  // Time since its last sign of life; InfiniteDuration if there was none.
  absl::Duration heartbeat_age;
  TaskFacts facts;
  uint64_t progress = 0;
  std::vector<WaitStatus> waits;
};

// An open barrier.
struct BarrierStatus {
  std::string id;
  int64_t counter = 0;
  int total = 0;
  // Node ids as ranges: "0-3,7".
  std::string arrived;
  std::string missing;
  absl::Duration age;
  absl::Duration remaining;
  // Node ids and each one's delay after the first arrival; only the first 256 of a large barrier.
  std::vector<std::pair<int, absl::Duration>> arrivals;
};

struct JobStatus {
  std::vector<TaskStatus> tasks;
  std::vector<BarrierStatus> barriers;
  // Waits of clients that are not tasks.
  std::vector<WaitStatus> anonymous_waits;
  uint64_t coordinator_incarnation = 0;
  absl::Duration uptime;
  int64_t key_count = 0;
  int64_t stored_bytes = 0;
  int64_t store_revision = 0;
  int64_t parked_waits = 0;
  int64_t dropped_waits = 0;
  int64_t epoch = 0;
  // The error that was propagated to all tasks; OK while the job is healthy.
  absl::Status error;
  bool topology_complete = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_JOB_STATUS_H_
