// SPDX-License-Identifier: Apache-2.0
// JobStatus: connected and missing tasks, and pending waits.
#ifndef FERRY_COORD_CORE_JOB_STATUS_H_
#define FERRY_COORD_CORE_JOB_STATUS_H_

#include <cstdint>
#include <optional>
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

// A client's wait in a PyTorch store.
struct StoreWaitStatus {
  // "ipv4:10.0.0.7:50112"
  std::string peer;
  // The first absent keys, and the number of all of them. For a barrier, its key.
  std::vector<std::string> keys;
  int64_t key_count = 0;
  // Barriers only.
  int64_t world_size = 0;
  int64_t arrived = 0;
  absl::Duration age;
};

// A key for which clients of a PyTorch store wait.
struct MissingStoreKeyStatus {
  std::string key;
  // If each rank sets a key of this form: the ranks that have not, as ranges, "3,5-7".
  std::string ranks;
  int64_t clients = 0;
  // Barriers only.
  int64_t world_size = 0;
  int64_t arrived = 0;
  // The longest wait.
  absl::Duration age;
};

// A PyTorch store of the coordinator.
struct StoreScopeStatus {
  // Empty, with port 0, for the store of the coordinator's own port.
  std::string name;
  int port = 0;
  int64_t clients = 0;
  int64_t keys = 0;
  int64_t bytes = 0;
  int64_t wait_count = 0;
  // The oldest waits, and the keys for which most clients wait.
  std::vector<StoreWaitStatus> waits;
  std::vector<MissingStoreKeyStatus> missing;
};

// A replica group of torchft.
struct ReplicaStatus {
  std::string id;
  std::string address;
  int64_t step = 0;
  // It is a member of the latest quorum.
  bool is_in_quorum = false;
  // A Quorum call is pending, for this long.
  bool has_joined = false;
  absl::Duration joined_for;
  // Its last heartbeat is younger than the heartbeat timeout.
  bool is_healthy = false;
  // InfiniteDuration if the replica has been removed.
  absl::Duration heartbeat_age;
};

// The state of torchft's lighthouse.
struct LighthouseStatus {
  // The id of the latest quorum; 0 if there was none.
  int64_t quorum_id = 0;
  int64_t quorum_size = 0;
  absl::Duration quorum_age;
  // Why pending Quorum calls have no quorum yet; empty if none is pending.
  std::string waits_for;
  std::vector<ReplicaStatus> replicas;
  int64_t replica_count = 0;
};

// An agent or a rank of ElasticRunStatus.
struct ElasticAgentStatus {
  std::string agent_id;
  std::string host;
  // The rank in the running round; -1 if it is not a member.
  int rank = -1;
  // It has waited for the next round for `age`.
  bool is_waiting = false;
  // Groups only: the rank of the process.
  int wanted_rank = -1;
  absl::Duration age;
  // Its connection has ended.
  bool is_detached = false;
};

// A run of PyTorch's rendezvous: the nodes of a job, or the ranks of a group.
struct ElasticRunStatus {
  std::string run_id;
  bool is_group = false;
  int min_nodes = 0;
  int max_nodes = 0;
  // The latest round; -1 if there was none.
  int64_t round = -1;
  bool is_closed = false;
  // The running round's store; 0 and empty if no round has begun.
  int port = 0;
  std::string scope;
  std::vector<ElasticAgentStatus> agents;
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
  // Empty if the coordinator is of a version without them.
  std::vector<StoreScopeStatus> store_scopes;
  // Absent if no torchft client has ever called.
  std::optional<LighthouseStatus> lighthouse;
  std::vector<ElasticRunStatus> elastic_runs;
  // The memory of incomplete requests, unread replies and waits of all clients of PyTorch's stores,
  // and its limit, which is 0 if the coordinator is a version without it.
  int64_t store_client_bytes = 0;
  int64_t max_store_client_bytes = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_JOB_STATUS_H_
