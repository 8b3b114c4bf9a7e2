// SPDX-License-Identifier: Apache-2.0
// The options of `ferry run`, and the environment that it gives to each process.
#ifndef FERRY_LAUNCH_LAUNCH_ENVIRONMENT_H_
#define FERRY_LAUNCH_LAUNCH_ENVIRONMENT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ferry {

// One launch. Every machine of the job launches with the same counts and its own machine_index.
struct LaunchOptions {
  // Program and arguments; the program is looked up in PATH if it has no slash.
  std::vector<std::string> command;
  // Processes per machine; the same on every machine.
  int local_count = 1;
  // Number of machines in the job.
  int machine_count = 1;
  // Index of this machine, from 0.
  int machine_index = 0;
  // HOST:PORT of the running coordinator.
  std::string coordinator;
  // HOST:PORT for MASTER_ADDR and MASTER_PORT: programs of the PyTorch convention listen there
  // themselves, in rank 0 and thus on the first machine; see ChooseMaster. Empty: a free loopback
  // port on one machine; with several machines both variables are left unchanged.
  std::string master;
  // Not empty: the coordinator serves PyTorch's store at `master`, for this run alone, and no rank
  // listens there. An id of the run.
  std::string store_run_id;
  // The rank, among all of the job, that reads the launcher's standard input; the others, or all of
  // them if absent, read /dev/null.
  std::optional<int> stdin_rank;
  // GPUs per process, set through CUDA_VISIBLE_DEVICES, a slice of the inherited list if there is
  // one; 0 leaves the variable unchanged.
  int gpus_per_process = 0;
  // The coordinator's heartbeat timeout, if the user has set one.
  std::optional<absl::Duration> heartbeat_timeout;
  // Time between the first signal and SIGKILL.
  absl::Duration grace = absl::Seconds(10);
  // With prefix_output, longer output lines are broken at this length.
  size_t max_line_bytes = 64 << 10;
  // Number of last lines of a failed process that are repeated.
  int tail_line_count = 20;
  // Puts "[rank] " before every line of output; a carriage return ends a line too. Without it,
  // output is passed on unchanged, and lines of several processes may mix.
  bool prefix_output = true;
};

// A duration such as "300s", for programs that should use the coordinator's heartbeat timeout.
inline constexpr char kHeartbeatTimeoutVariable[] = "FERRY_HEARTBEAT_TIMEOUT";

// The rank of the process `local_rank` of this machine among all processes of the job.
int GlobalRank(const LaunchOptions& options, int local_rank);

// Checks the counts and indices, for a caller that has no coordinator yet.
//   Errors: INVALID_ARGUMENT, naming the flag of `ferry run`.
absl::Status CheckLaunchCounts(const LaunchOptions& options);

// Checks that the options are consistent.
//   Errors: INVALID_ARGUMENT, naming the option.
absl::Status CheckLaunchOptions(const LaunchOptions& options);

// The environment of process `local_rank`: `inherited` ("NAME=VALUE" each) with these set:
//   FERRY_COORDINATOR FERRY_NODE_ID FERRY_NUM_NODES FERRY_LOCAL_RANK FERRY_LOCAL_SIZE FERRY_RUN
//   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
//   JAX_COORDINATOR_ADDRESS JAX_COORDINATOR_BIND_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID
//   CUDA_VISIBLE_DEVICES and FERRY_HEARTBEAT_TIMEOUT, if requested
//   with a store_run_id TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID
//   GROUP_RANK
// and without those of an outer torchrun: TORCHELASTIC_*, GROUP_* and ROLE_*, by which PyTorch
// would look for the outer job's store. Pure. Errors: INVALID_ARGUMENT when the inherited
// CUDA_VISIBLE_DEVICES has too few devices. REQUIRES: CheckLaunchOptions(options) is OK and 0 <=
// local_rank < options.local_count.
absl::StatusOr<std::vector<std::string>> ComposeEnvironment(
    const LaunchOptions& options, int local_rank, absl::Span<const std::string> inherited);

}  // namespace ferry

#endif  // FERRY_LAUNCH_LAUNCH_ENVIRONMENT_H_
