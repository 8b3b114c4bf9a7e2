// SPDX-License-Identifier: Apache-2.0
// JobStatus: who is there, who is missing, and who waits for what.
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
  // Waits for the others to join.
  bool is_joining = false;
  uint64_t incarnation = 0;
  // Why it is in kError.
  absl::Status error;
  // Since its last sign of life; InfiniteDuration when there was none.
  absl::Duration heartbeat_age;
  TaskFacts facts;
  uint64_t progress = 0;
  std::vector<WaitStatus> waits;
};

// A barrier that is open.
struct BarrierStatus {
  std::string id;
  int64_t counter = 0;
  int total = 0;
  // Node ids as ranges: "0-3,7".
  std::string arrived;
  std::string missing;
  absl::Duration age;
  absl::Duration remaining;
  // Node ids and how long after the first each arrived; of a large barrier only the first 256.
  std::vector<std::pair<int, absl::Duration>> arrivals;
};

struct JobStatus {
  std::vector<TaskStatus> tasks;
  std::vector<BarrierStatus> barriers;
  // Of clients that are no tasks.
  std::vector<WaitStatus> anonymous_waits;
  uint64_t coordinator_incarnation = 0;
  absl::Duration uptime;
  int64_t key_count = 0;
  int64_t stored_bytes = 0;
  int64_t store_revision = 0;
  int64_t parked_waits = 0;
  int64_t dropped_waits = 0;
  int64_t epoch = 0;
  // The error that was told to everyone; OK while the job is well.
  absl::Status error;
  bool topology_complete = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_JOB_STATUS_H_
