// SPDX-License-Identifier: Apache-2.0
// What a coordinator can be told.
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
  // The named parts of the job. JAX calls its only one "jax_worker".
  std::vector<JobSpec> jobs = {{"jax_worker", 1}};
  // RegisterTask answers when every task has registered.
  bool register_barrier = true;
  // How long the first task to register waits for the others.
  absl::Duration register_timeout = absl::Minutes(60);
  // A task that is silent for longer is considered dead. For clients that do not transmit their own
  // timeout, the one that their heartbeats imply applies as soon as it is known, and this one
  // before that.
  absl::Duration heartbeat_timeout = absl::Seconds(100);
  // The heartbeat timeout is also the most that is granted to a client whose own is longer.
  bool heartbeat_timeout_is_limit = false;
  // How long a task that shuts down waits for the others; zero: it leaves at once.
  absl::Duration shutdown_timeout = absl::Seconds(300);
  // How long EnumerateDevices waits for the others unless the caller says.
  absl::Duration enumerate_timeout = absl::Minutes(5);
  // Tasks may die and come back without failing the job.
  bool recoverable = false;
  // When every task has left, or the job has failed and nothing was heard of it for a heartbeat
  // timeout, the next registration of another incarnation begins a new job with an empty store.
  // Only with the register barrier, for without it nobody can tell one job from the next.
  bool reuse = true;

  // Limits. Each error that one of them causes names it.
  // Of what a client of ferry.v1.Control sends at once: a frame is one piece of work, during which
  // nobody else is served. A value of 64 MiB fits, with its key. From 1 MiB to 2 GiB - 1.
  size_t max_frame_bytes = size_t{65} << 20;
  size_t max_key_bytes = size_t{1} << 20;
  size_t max_value_bytes = size_t{1} << 30;
  size_t max_store_bytes = ShareOfMemory(size_t{8} << 30, 2);
  size_t max_keys = 10'000'000;
  size_t max_parked_waits = 4'000'000;
  // Results of finished barriers are kept for late callers: this many, with so many bytes of ids
  // and lists of tasks.
  size_t max_finished_barriers = 100'000;
  size_t max_finished_barrier_bytes = size_t{512} << 20;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_OPTIONS_H_
