// SPDX-License-Identifier: Apache-2.0
// Identity: this process's rank in the job, as given by the launcher's environment variables.
#ifndef FERRY_NODE_IDENTITY_H_
#define FERRY_NODE_IDENTITY_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

// A value and the environment variable that gave it.
template <typename T>
struct Sourced {
  T value;
  std::string source;

  friend bool operator==(const Sourced&, const Sourced&) = default;
};

// The identity given by the environment. A plain value; unset parts are absent.
struct Identity {
  std::optional<Sourced<int>> node_id;              // index of this process among all, from 0
  std::optional<Sourced<int>> num_nodes;            // count of all processes
  std::optional<Sourced<int>> local_rank;           // index of this process on its machine, from 0
  std::optional<Sourced<std::string>> coordinator;  // HOST:PORT
  // If no coordinator is named: the machine of process 0, and a port that all processes of the job
  // derive alike. A process 0 that runs the coordinator listens there.
  std::optional<Sourced<std::string>> first_host;
  std::optional<Sourced<int>> port_hint;
};

// Result of ReadRefusedIdentity.
struct RefusedIdentity : Identity {
  // The variables do not rule out that this is process 0: one says so, or has no valid number.
  bool may_be_first = false;
};

// Returns the value of an environment variable, or nullopt if it is not set.
using GetEnv = absl::FunctionRef<std::optional<std::string>(const char* name)>;

// The environment of this process.
std::optional<std::string> ProcessEnv(const char* name);

// Reads the identity of this process. The launcher nearest to the process decides, in this order:
//   1. FERRY_NODE_ID FERRY_NUM_NODES FERRY_LOCAL_RANK FERRY_COORDINATOR  (`ferry run`, or by hand)
//   2. RANK WORLD_SIZE LOCAL_RANK                                        (torchrun, or by hand)
//   3. OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK                            (Open MPI)
//   4. MV2_COMM_WORLD_RANK _SIZE _LOCAL_RANK, MVP_...                    (MVAPICH)
//   5. PMI_RANK PMI_SIZE MPI_LOCALRANKID                                 (MPICH, Intel MPI)
//   6. PMIX_RANK, unless it is Slurm's                                   (PRRTE)
//   7. SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID (srun)
//   8. TF_CONFIG, when it has no tasks but chief and workers             (TensorFlow, by hand)
//   9. JOB_COMPLETION_INDEX with a count in JOB_COMPLETIONS, NUM_PROCESSES or WORLD_SIZE
//                                                                        (Kubernetes indexed job)
// A launcher counts only when both its rank and its size are set; Kubernetes and PRRTE, which set
// no size by themselves, also without. Slurm counts within a step only: in a batch script, which
// has SLURM_PROCID=0 and the count of tasks that its steps may have, only if that count is 1.
// Variables that `ferry run` set for a rank do not count where another launcher was started inside
// that rank. Each FERRY_ variable overrides its own value only. An empty variable counts as unset.
//   Errors: INVALID_ARGUMENT, naming variable and value, for a malformed number or address, for a
//   rank beyond its size, and when RANK or TF_CONFIG was set by hand and contradicts the nearest
//   launcher of a job of equal size, because then it is ambiguous which one is right; FERRY_NODE_ID
//   resolves it.
absl::StatusOr<Identity> ReadIdentity(GetEnv get_env);

// Reads FERRY_COORDINATOR and FERRY_NUM_NODES alone, for a process whose node id is known
// otherwise.
//   Errors: INVALID_ARGUMENT as ReadIdentity.
absl::StatusOr<Identity> ReadCoordinatorVariables(GetEnv get_env);

// The known parts of this process's identity where ReadIdentity fails, to report the failure to its
// job. The node id is that of the nearest launcher that has started this very process, or of the
// only one with any variable set; absent if it is uncertain. Returns nullopt if no variable gives
// this process a rank in a job, valid or not.
std::optional<RefusedIdentity> ReadRefusedIdentity(GetEnv get_env);

// The value that `ferry run` sets as FERRY_RUN in the environment of a rank, so that a launcher
// which is started inside the rank can be told from those around the job.
//   get_env: the environment that `ferry run` was started in.
std::string FerryRunMark(GetEnv get_env, absl::string_view coordinator, int node_id);

// True if FERRY_COORDINATOR and FERRY_NODE_ID are those that `ferry run` gave to this rank, and not
// set by hand.
bool IsRankOfFerryRun(GetEnv get_env);
// The ids that `ferry run` gives to TORCHELASTIC_RUN_ID begin so.
inline constexpr char kFerryRunIdPrefix[] = "ferry-";

// Human-readable: "node 3 of 8 (SLURM_PROCID, SLURM_NTASKS), coordinator a:1 (FERRY_COORDINATOR)".
std::string Describe(const Identity& identity);

// The first host of a Slurm node list: "gpu003" for "gpu[003-010,12],login1". Blanks around hosts
// and numbers are skipped.
//   Errors: INVALID_ARGUMENT when `nodelist` is empty or its brackets do not match.
absl::StatusOr<std::string> FirstSlurmHost(absl::string_view nodelist);

}  // namespace ferry

#endif  // FERRY_NODE_IDENTITY_H_
