// SPDX-License-Identifier: Apache-2.0
// Agent: a process's end of the coordinator; joins a job and speaks for its node.
#ifndef FERRY_COORD_CLIENT_AGENT_H_
#define FERRY_COORD_CLIENT_AGENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "coord/core/job_status.h"
#include "coord/core/types.h"
#include "topology/global_topology.h"
#include "topology/local_topology.h"

namespace ferry::coord {

struct AgentOptions {
  // HOST:PORT of the coordinator.
  std::string coordinator;
  // Which node of the job this process is. Absent: a tool that uses the store and looks around.
  std::optional<int> node_id;
  // Tells this life of the process from others; 0 draws one.
  uint64_t incarnation = 0;
  std::string host_name;
  std::string boot_id;
  // Of the GPUs that this node uses: one machine given to a job twice is noticed.
  std::vector<std::string> gpu_uuids;
  // Of how many, if the process knows: a coordinator of another number of nodes is another job's.
  std::optional<int> num_nodes;
  // What this node has. Sent along when it joins: Connect then also waits for everyone's, and
  // Topology() has them.
  std::optional<LocalTopology> devices;
  // How long Connect waits for the others' devices once all have joined.
  absl::Duration enumerate_timeout = absl::Minutes(5);
  // The node may die and come back without failing the job.
  bool recoverable = false;
  // Why this process, which was to be a node of the job, cannot be one. Connect, which takes no
  // node_id then, tells the nodes that wait for the others to join, or the first that comes.
  absl::Status cannot_join;
  // The coordinator does not take this process for that node of its job. Called in Connect, when
  // its connection has ended and before it returns; not for a node that is recoverable, whose
  // earlier incarnation may still hold the place.
  std::function<void(const absl::Status&)> on_refused;
  // How long Connect waits for the coordinator and for the other nodes, both together.
  absl::Duration connect_timeout = absl::Minutes(5);
  // How long the answer to a call that waits for nobody may take: of the store but for Get, of the
  // job's status. Long enough for a busy network; what is written gets a second more for each MiB.
  absl::Duration answer_timeout = absl::Seconds(30);
  // How long the coordinator may be out of reach before the job is given up. Zero: as long as it
  // would take the coordinator to give up on this node.
  absl::Duration lost_timeout = absl::ZeroDuration();
  // A connection over which nothing has come for this long (at least: until a heartbeat could have
  // been answered) is given up for a new one; so is one that takes the other to be made. Kernels
  // and proxies may keep a connection to a process that hangs.
  absl::Duration idle_timeout = absl::Seconds(30);
  absl::Duration connect_attempt_timeout = absl::Seconds(40);
  // An attempt to reach the coordinator has failed, and the next one will be made: why. Called on a
  // thread of the agent.
  std::function<void(const absl::Status&)> on_attempt_failed;
  // Keep a copy to call Connect off that is under way, or that will be. Connect ends with the
  // reason, and tells the coordinator: the others wait for this node again, or hear why it does not
  // come if they have counted it in. Cancel may block for seconds then; it does nothing once
  // Connect has returned.
  std::shared_ptr<CancellationToken> connect_stop = std::make_shared<CancellationToken>();
  // Also listen for tensorflow.CoordinationService/ReportErrorToTask on this HOST:PORT; empty: no.
  std::string error_listen;
  // The job has failed, or the coordinator is lost: called at most once, on a thread of the agent.
  // When the coordinator of a job that has failed cannot be reached again at once, calls end with
  // the job's error.
  // Calls that wait end by themselves. The process is never ended by the agent.
  std::function<void(absl::Status)> on_error;
};

struct KeyValue {
  std::string key;
  std::string value;
  int64_t revision = 0;
};

struct KeyChange {
  bool deleted = false;
  KeyValue entry;
};

struct CompareAndSetResult {
  bool was_set = false;
  // What the key holds now; absent if it does not exist.
  std::optional<std::string> value;
};

// Nodes of the job at one time.
struct NodeTable {
  int64_t version = 0;
  // Without their waits.
  std::vector<TaskStatus> tasks;
};

// A change of this watch's prefix calls its callback until it is destroyed. Outlived by the agent.
class AgentWatch {
 public:
  virtual ~AgentWatch() = default;
};

// Thread-safe. One connection and one thread ("ferry-agent") for everything. A dropped connection
// is made again with back-off; requests under way neither fail nor happen twice. Every call ends:
// timeouts are enforced by the coordinator, which knows who is missing, and some seconds later by
// the agent. Common errors: DEADLINE_EXCEEDED; UNAVAILABLE the coordinator is out of reach or
// stopping; ABORTED it has restarted or given up on this node; CANCELLED the agent is being
// destroyed. DEADLINE_EXCEEDED also when the coordinator hangs, and then says since when.
class Agent final {
 public:
  template <typename T>
  using Callback = absl::AnyInvocable<void(absl::StatusOr<T>) &&>;
  using StatusCallback = absl::AnyInvocable<void(absl::Status) &&>;

  // Attaches to the coordinator and, with a node_id, joins: returns when every node has. With
  // `devices`, also as Enumerate.
  //   Errors: INVALID_ARGUMENT bad address or unknown node; DEADLINE_EXCEEDED naming the nodes that
  //   did not come, or the address that did not answer; ALREADY_EXISTS the node id is taken;
  //   FAILED_PRECONDITION the coordinator serves another number of nodes, or the job cannot begin
  //   because a process that was to be one of its nodes cannot; ABORTED the job has failed; that of
  //   AgentOptions::connect_stop. With `cannot_join` FAILED_PRECONDITION if all nodes have joined,
  //   and go on.
  static absl::StatusOr<std::unique_ptr<Agent>> Connect(AgentOptions options);
  // Leaves nothing behind: pending calls end CANCELLED. A node that has not called Shutdown or
  // Leave is missed by the others after the heartbeat timeout.
  ~Agent();

  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // As the coordinator said when it was reached.
  int num_nodes() const;
  const std::string& observed_address() const;
  uint64_t incarnation() const;

  // --- Store ---

  // Waits until the key is there.
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout);
  // Waits until all are there; values in the order of `keys`. One message each way.
  absl::StatusOr<std::vector<std::string>> GetAll(std::vector<std::string> keys,
                                                  absl::Duration timeout);
  // NOT_FOUND when the key is not there now.
  absl::StatusOr<std::string> TryGet(absl::string_view key);
  // ALREADY_EXISTS when the key is there and not `overwrite`.
  absl::Status Set(absl::string_view key, absl::string_view value, bool overwrite = false);
  // All or none.
  absl::Status SetAll(std::vector<std::pair<std::string, std::string>> entries,
                      bool overwrite = false);
  // `subtree`: also everything under key + "/".
  absl::Status Delete(absl::string_view key, bool subtree = false);
  // The number after adding. FAILED_PRECONDITION when the key holds no number.
  absl::StatusOr<int64_t> Increment(absl::string_view key, int64_t increment = 1);
  // Sets the key if it holds `expected` (nullopt: if it does not exist).
  absl::StatusOr<CompareAndSetResult> CompareAndSet(absl::string_view key,
                                                    const std::optional<std::string>& expected,
                                                    absl::string_view desired);
  // Entries whose key begins with `prefix`, ordered by key.
  absl::StatusOr<std::vector<KeyValue>> List(absl::string_view prefix, bool keys_only = false);
  // `on_change` hears of what is there and then of every change, in order, on one thread of
  // all agents of this process; it must not block, destroy an agent, or call one but for what ends
  // in Async, which never waits. It returns before the coordinator has heard of it: what changes
  // until then is there already, and told once.
  absl::StatusOr<std::unique_ptr<AgentWatch>> Watch(
      absl::string_view prefix, std::function<void(const KeyChange&)> on_change);

  // As those without Async; `done` runs once, never inside: on the agent's thread or on the one
  // that all agents of this process share, so that the same holds for it as for `on_change`.
  void GetAllAsync(std::vector<std::string> keys, absl::Duration timeout,
                   Callback<std::vector<std::string>> done);
  void SetAllAsync(std::vector<std::pair<std::string, std::string>> entries, bool overwrite,
                   StatusCallback done);
  void IncrementAsync(absl::string_view key, int64_t increment, Callback<int64_t> done);
  void CompareAndSetAsync(absl::string_view key, const std::optional<std::string>& expected,
                          absl::string_view desired, Callback<CompareAndSetResult> done);

  // --- The other nodes ---

  // Waits for `nodes` (empty: everyone, this one included). An id can be used again and again.
  //   Errors: DEADLINE_EXCEEDED naming all missing nodes; INVALID_ARGUMENT others wait there with
  //   another list; INTERNAL a node failed or is at another use; FAILED_PRECONDITION this process
  //   is waiting there already.
  absl::Status Barrier(absl::string_view id, absl::Duration timeout, std::vector<int> nodes = {});
  void BarrierAsync(absl::string_view id, absl::Duration timeout, std::vector<int> nodes,
                    StatusCallback done);
  // Ends the barrier that this process waits at, with CANCELLED for everyone.
  //   Errors: FAILED_PRECONDITION when it does not wait there.
  absl::Status CancelBarrier(absl::string_view id);

  // Nodes of `nodes` (this one among them) that are alive, with their incarnations; waits until
  // each that is alive has asked.
  absl::StatusOr<std::vector<std::pair<int, uint64_t>>> AliveNodes(std::vector<int> nodes,
                                                                   absl::Duration timeout);
  // Waits until the table has moved past `version`; -1 answers now, with every node, else with
  // those that have changed since (and maybe others). `done` as for GetAllAsync.
  void WatchTasksAsync(int64_t version, Callback<NodeTable> done);
  // Waits until the job is known not to begin, for a process that cannot join (cannot_join above),
  // and ends with that process's error, FAILED_PRECONDITION mostly; never OK. For sessions without
  // a node, that start nodes of the job later.
  //   Errors: UNIMPLEMENTED from a coordinator of an earlier version.
  void WatchJoiningAsync(StatusCallback done);
  // Sends this node's devices and waits for everyone's.
  absl::StatusOr<GlobalTopology> Enumerate(const LocalTopology& local, absl::Duration timeout);
  // Everyone's devices; NOT_FOUND before they are known.
  absl::StatusOr<GlobalTopology> Topology();
  absl::StatusOr<JobStatus> Status();

  // Shown beside the node in status reports; grows with the work done. Goes with the heartbeats.
  void SetProgress(uint64_t progress);
  // Fails the job with this node's error.
  absl::Status ReportError(const absl::Status& error);
  // Leaves together with everyone.
  absl::Status Shutdown();
  // Leaves at once.
  absl::Status Leave();
  // Ends the job for everyone, so that the next registration begins another.
  //   force: even if the job is healthy.
  //   proof: that this process knows the job's token, where the coordinator asks for that.
  //   Errors: FAILED_PRECONDITION the job is healthy, and not `force`; PERMISSION_DENIED.
  absl::Status EndJob(absl::string_view why, bool force, absl::string_view proof);

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_H_
