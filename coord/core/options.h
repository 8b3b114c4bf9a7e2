// SPDX-License-Identifier: Apache-2.0
// The options of a coordinator.
#ifndef FERRY_COORD_CORE_OPTIONS_H_
#define FERRY_COORD_CORE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "base/usable_resources.h"

namespace ferry::coord {

struct JobSpec {
  std::string name;
  int tasks = 0;
};

struct CoordinatorOptions {
  // The named parts of the job. JAX calls its single one "jax_worker".
  std::vector<JobSpec> jobs = {{"jax_worker", 1}};
  // RegisterTask answers when every task has registered.
  bool register_barrier = true;
  // How long the first task to register waits for the others.
  absl::Duration register_timeout = absl::Minutes(60);
  // A task that is silent for longer counts as dead. For clients that do not transmit their own
  // timeout, the one that their heartbeats imply applies as soon as it is known, and this one
  // before that.
  absl::Duration heartbeat_timeout = absl::Seconds(100);
  // The heartbeat timeout also caps a client's own timeout.
  bool heartbeat_timeout_is_limit = false;
  // How long a task that shuts down waits for the others; zero: it leaves at once.
  absl::Duration shutdown_timeout = absl::Seconds(300);
  // How long EnumerateDevices waits for the others by default.
  absl::Duration enumerate_timeout = absl::Minutes(5);
  // Tasks may die and come back without failing the job.
  bool recoverable = false;
  // When every task has left, or the job has failed and shown no activity for a heartbeat timeout,
  // the next registration of another incarnation starts a new job with an empty store. Requires
  // the register barrier, since without it jobs cannot be told apart.
  bool reuse = true;

  // Limits. Each error that one of them causes names it.
  // The largest frame that a client of ferry.v1.Control may send: a frame is one unit of work,
  // during which no other client is served. A value of 64 MiB fits, with its key. From 1 MiB to 2
  // GiB - 1.
  size_t max_frame_bytes = size_t{65} << 20;
  size_t max_key_bytes = size_t{1} << 20;
  size_t max_value_bytes = size_t{1} << 30;
  size_t max_store_bytes = ShareOfMemory(size_t{8} << 30, 2);
  size_t max_keys = 10'000'000;
  // Calls that wait for keys, and separately those that wait for the joining to fail.
  size_t max_pending_gets = 4'000'000;
  // Limits on results of finished barriers kept for late callers: their number, and the bytes of
  // their ids and task lists.
  size_t max_finished_barriers = 100'000;
  size_t max_finished_barrier_bytes = size_t{512} << 20;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_OPTIONS_H_
