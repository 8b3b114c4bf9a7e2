// SPDX-License-Identifier: Apache-2.0
// What `ferry run` is asked to do, and the environment it gives to each process.
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
  // Program and arguments; the program is looked up in PATH when it has no slash.
  std::vector<std::string> command;
  // Processes on this machine, and on every other one.
  int local_count = 1;
  // Machines of the job.
  int machine_count = 1;
  // Which of them this is, from 0.
  int machine_index = 0;
  // HOST:PORT of the running coordinator.
  std::string coordinator;
  // HOST:PORT for MASTER_ADDR and MASTER_PORT: where programs of the PyTorch convention listen
  // themselves, in rank 0 and thus on the first machine; see ChooseMaster. Empty: one machine takes
  // a free port on loopback; several leave both variables as they are.
  std::string master;
  // The rank, of all of the job, that reads the launcher's standard input; the others, and all of
  // them if there is none, read /dev/null.
  std::optional<int> stdin_rank;
  // GPUs for each process through CUDA_VISIBLE_DEVICES, cut from the inherited list if there is
  // one; 0 leaves the variable alone.
  int gpus_per_process = 0;
  // The coordinator's, if the user has named one.
  std::optional<absl::Duration> heartbeat_timeout;
  // From the polite signal to SIGKILL.
  absl::Duration grace = absl::Seconds(10);
  // Longer output lines are broken at this length where each gets a prefix.
  size_t max_line_bytes = 64 << 10;
  // How many of the last lines of a failed process are repeated.
  int tail_line_count = 20;
  // "[rank] " before every line of output; a carriage return ends a line too. Without it, output is
  // passed on byte for byte, and lines of several processes may mix.
  bool prefix_output = true;
};

// A duration such as "300s", for programs that are to have the coordinator's heartbeat timeout.
inline constexpr char kHeartbeatTimeoutVariable[] = "FERRY_HEARTBEAT_TIMEOUT";

// The rank of the process `local_rank` of this machine among all processes of the job.
int GlobalRank(const LaunchOptions& options, int local_rank);

// Whether the counts and indices make sense, for a caller that has no coordinator yet.
//   Errors: INVALID_ARGUMENT, naming the flag of `ferry run`.
absl::Status CheckLaunchCounts(const LaunchOptions& options);

// Whether the options make sense together.
//   Errors: INVALID_ARGUMENT, naming the option.
absl::Status CheckLaunchOptions(const LaunchOptions& options);

// The environment of process `local_rank`: `inherited` ("NAME=VALUE" each) with these set:
//   FERRY_COORDINATOR FERRY_NODE_ID FERRY_NUM_NODES FERRY_LOCAL_RANK FERRY_LOCAL_SIZE FERRY_RUN
//   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
//   JAX_COORDINATOR_ADDRESS JAX_COORDINATOR_BIND_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID
//   CUDA_VISIBLE_DEVICES and FERRY_HEARTBEAT_TIMEOUT, when asked
// and without those of an outer torchrun: TORCHELASTIC_*, GROUP_* and ROLE_*, by which PyTorch
// would look for that one's store. Pure. Errors: INVALID_ARGUMENT when the inherited
// CUDA_VISIBLE_DEVICES has too few devices. REQUIRES: CheckLaunchOptions(options) is OK and 0 <=
// local_rank < options.local_count.
absl::StatusOr<std::vector<std::string>> ComposeEnvironment(
    const LaunchOptions& options, int local_rank, absl::Span<const std::string> inherited);

}  // namespace ferry

#endif  // FERRY_LAUNCH_LAUNCH_ENVIRONMENT_H_
