// SPDX-License-Identifier: Apache-2.0
// Basic types of coordination: tasks, incarnations, waits.
#ifndef FERRY_COORD_CORE_TYPES_H_
#define FERRY_COORD_CORE_TYPES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/strong_id.h"

namespace ferry::coord {

// A member of the job, dense from 0 over all its named parts (Jobs translates).
using TaskId = StrongId<struct TaskIdTag, int32_t>;
inline constexpr TaskId kNoTask{-1};

// One incarnation of a process: a restarted task has another one.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;

// Tells the jobs that one coordinator serves in turn from one another.
struct JobIdentity {
  // The number of jobs so far, with this one.
  int64_t epoch = 1;
  // Random, and another for each job, so that late calls of an earlier one are detected.
  Incarnation incarnation;
};

// A pending call, for Coordinator::Cancel.
using WaitId = StrongId<struct WaitIdTag, uint64_t>;
// The call is not pending: its callback is already queued.
inline constexpr WaitId kNoWait{0};

// The values are those on the wire.
enum class TaskState { kDisconnected = 2, kConnected = 3, kError = 4 };

// Facts that a client reports, or that are observed, when it registers.
struct TaskFacts {
  // "control", "coordination" or "drs".
  std::string service;
  // In gRPC's format: "ipv4:10.0.0.7:50112".
  std::string observed_address;
  std::string host_name;
  std::string boot_id;
  int64_t process_id = 0;
  std::string error_address;
};

struct TaskInfo {
  TaskId task = kNoTask;
  TaskState state = TaskState::kDisconnected;
  Incarnation incarnation;
  // The error that put the task into kError; OK otherwise.
  absl::Status status;
  // The table's version when the task last changed; 0: never.
  int64_t version = 0;
};

// One pending wait, for status reports.
struct WaitInfo {
  TaskId task = kNoTask;
  std::string what;
  absl::Time since;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_TYPES_H_
