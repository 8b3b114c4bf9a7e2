// SPDX-License-Identifier: Apache-2.0
// Agent: a process's client of the coordinator; joins a job as one of its nodes.
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
  // The node of the job that this process is. Absent for a tool that only uses the store and
  // queries.
  std::optional<int> node_id;
  // Identifies this incarnation of the process; 0 generates one.
  uint64_t incarnation = 0;
  std::string host_name;
  std::string boot_id;
  // The GPUs that this node uses, to detect a machine that was given to a job twice.
  std::vector<std::string> gpu_uuids;
  // The job's number of nodes, if known: a coordinator with another number serves another job.
  std::optional<int> num_nodes;
  // The devices of this node. Sent on joining: Connect then also waits for those of all nodes, and
  // Topology() returns them.
  std::optional<LocalTopology> devices;
  // How long Connect waits for the others' devices once all have joined.
  absl::Duration enumerate_timeout = absl::Minutes(5);
  // The node may die and come back without failing the job.
  bool recoverable = false;
  // Why this process, which should have been a node of the job, cannot be one. Connect, then
  // without node_id, reports it to the nodes that wait for the others to join, or to the first
  // that registers.
  absl::Status cannot_join;
  // The coordinator has rejected this process as that node of its job. Called in Connect, after
  // its connection has ended and before it returns; not for a recoverable node, whose earlier
  // incarnation may still hold the id.
  std::function<void(const absl::Status&)> on_refused;
  // The limit on waiting for the coordinator and for the other nodes together.
  absl::Duration connect_timeout = absl::Minutes(5);
  // The limit on calls that do not wait for other nodes: store calls except Get, and job status.
  // Long enough for a busy network; writes get a second more per MiB.
  absl::Duration answer_timeout = absl::Seconds(30);
  // How long the coordinator may be unreachable before the job is abandoned. Zero: as long as the
  // coordinator would take to give up on this node.
  absl::Duration reconnect_timeout = absl::ZeroDuration();
  // A connection without incoming data for this long (at least: until a heartbeat could have been
  // answered) is replaced by a new one; this is also the limit for connecting. Kernels and proxies
  // may keep a connection to a process that hangs.
  absl::Duration idle_timeout = absl::Seconds(30);
  absl::Duration connect_attempt_timeout = absl::Seconds(40);
  // An attempt to reach the coordinator has failed with this error and will be repeated. Called on
  // a thread of the agent.
  std::function<void(const absl::Status&)> on_attempt_failed;
  // Keep a copy to cancel a current or later Connect. Connect ends with the reason, and notifies
  // the coordinator: the others wait for this node again, or receive the reason if they have
  // counted it in. Cancel may block for seconds then; it has no effect once Connect has returned.
  std::shared_ptr<CancellationToken> connect_stop = std::make_shared<CancellationToken>();
  // Also serve tensorflow.CoordinationService/ReportErrorToTask on this HOST:PORT, unless empty.
  std::string error_listen;
  // The job has failed, or the coordinator is lost: called at most once, on a thread of the agent.
  // When the coordinator of a failed job cannot be reached again at once, calls end with the job's
  // error. Pending calls end by themselves. The agent never ends the process.
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
  // The current value of the key; absent if it does not exist.
  std::optional<std::string> value;
};

// A snapshot of the job's nodes.
struct NodeTable {
  int64_t version = 0;
  // Without their waits.
  std::vector<TaskStatus> tasks;
};

// A watch of a prefix: its callback is called for changes until it is destroyed. Outlived by the
// agent.
class AgentWatch {
 public:
  virtual ~AgentWatch() = default;
};

// Thread-safe. One connection and one thread ("ferry-agent") in all. A dropped connection is
// re-established with back-off; pending requests neither fail nor execute twice. Every call ends:
// the coordinator, which knows the missing nodes, enforces timeouts, and some seconds later the
// agent does. Common errors: DEADLINE_EXCEEDED; UNAVAILABLE the coordinator is unreachable or
// stopping; ABORTED it has restarted or given up on this node; CANCELLED the agent is being
// destroyed. DEADLINE_EXCEEDED also when the coordinator hangs, and then says since when.
class Agent final {
 public:
  template <typename T>
  using Callback = absl::AnyInvocable<void(absl::StatusOr<T>) &&>;
  using StatusCallback = absl::AnyInvocable<void(absl::Status) &&>;

  // Attaches to the coordinator and, with a node_id, joins: returns when every node has joined.
  // With `devices`, also does what Enumerate does.
  //   Errors: INVALID_ARGUMENT bad address or unknown node; DEADLINE_EXCEEDED naming the missing
  //   nodes, or the address that did not answer; ALREADY_EXISTS the node id is taken;
  //   FAILED_PRECONDITION the coordinator serves another number of nodes, or the job cannot start
  //   because a process that should have been one of its nodes cannot; ABORTED the job has failed;
  //   that of AgentOptions::connect_stop. With `cannot_join` FAILED_PRECONDITION if all nodes have
  //   joined, and continue.
  static absl::StatusOr<std::unique_ptr<Agent>> Connect(AgentOptions options);
  // Pending calls end CANCELLED. If a node has not called Shutdown or Leave, the others miss it
  // after the heartbeat timeout.
  ~Agent();

  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // As the coordinator reported when it was first reached.
  int num_nodes() const;
  const std::string& observed_address() const;
  uint64_t incarnation() const;

  // --- Store ---

  // Waits until the key exists.
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout);
  // Waits until all exist; values in the order of `keys`. One round trip.
  absl::StatusOr<std::vector<std::string>> GetAll(std::vector<std::string> keys,
                                                  absl::Duration timeout);
  // NOT_FOUND if the key does not exist.
  absl::StatusOr<std::string> TryGet(absl::string_view key);
  // ALREADY_EXISTS if the key exists and not `overwrite`.
  absl::Status Set(absl::string_view key, absl::string_view value, bool overwrite = false);
  // Sets all entries or none.
  absl::Status SetAll(std::vector<std::pair<std::string, std::string>> entries,
                      bool overwrite = false);
  // `subtree`: also everything under key + "/".
  absl::Status Delete(absl::string_view key, bool subtree = false);
  // Returns the sum. FAILED_PRECONDITION if the value is not a number.
  absl::StatusOr<int64_t> Increment(absl::string_view key, int64_t increment = 1);
  // Sets the key if it holds `expected` (nullopt: if it does not exist).
  absl::StatusOr<CompareAndSetResult> CompareAndSet(absl::string_view key,
                                                    const std::optional<std::string>& expected,
                                                    absl::string_view desired);
  // Entries whose key begins with `prefix`, ordered by key.
  absl::StatusOr<std::vector<KeyValue>> List(absl::string_view prefix, bool keys_only = false);
  // Calls `on_change` for existing entries and then for every change, in order, on one thread
  // shared by all agents of this process. It must not block, destroy an agent, or call one except
  // for the methods that end in Async, which never wait. Returns before the coordinator has
  // received the watch: changes until then count as existing, and are reported once.
  absl::StatusOr<std::unique_ptr<AgentWatch>> Watch(
      absl::string_view prefix, std::function<void(const KeyChange&)> on_change);

  // As the methods without Async; `done` runs once, never inside the call: on the agent's thread
  // or on the one shared by all agents of this process, so that the same restrictions apply as for
  // `on_change`.
  void GetAllAsync(std::vector<std::string> keys, absl::Duration timeout,
                   Callback<std::vector<std::string>> done);
  void SetAllAsync(std::vector<std::pair<std::string, std::string>> entries, bool overwrite,
                   StatusCallback done);
  void IncrementAsync(absl::string_view key, int64_t increment, Callback<int64_t> done);
  void CompareAndSetAsync(absl::string_view key, const std::optional<std::string>& expected,
                          absl::string_view desired, Callback<CompareAndSetResult> done);

  // --- PyTorch's stores ---

  // Holds the store `scope`, a key space with a port of its own, at the coordinator's host, until
  // CloseStore or the end of this agent. Returns the port for clients of PyTorch's TCPStore.
  //   Errors: UNIMPLEMENTED from a coordinator of an earlier version, as of the next two;
  //   INVALID_ARGUMENT for the name; RESOURCE_EXHAUSTED.
  absl::StatusOr<int> OpenStore(absl::string_view scope);
  // The port closes with the last hold; clients that are connected keep the store.
  //   Errors: NOT_FOUND; DEADLINE_EXCEEDED.
  absl::Status CloseStore(absl::string_view scope, absl::Duration timeout = absl::Seconds(30));
  // As List, at most `limit` entries unless that is 0. An empty scope: the store of the
  // coordinator's own port.
  //   Errors: NOT_FOUND when there is no such store.
  absl::StatusOr<std::vector<KeyValue>> ListStore(absl::string_view scope, absl::string_view prefix,
                                                  bool keys_only = false, int64_t limit = 0);

  // --- The other nodes ---

  // Waits for `nodes` (empty: all, including this one). An id can be reused.
  //   Errors: DEADLINE_EXCEEDED naming all missing nodes; INVALID_ARGUMENT others wait there with
  //   another list; INTERNAL a node failed or is at another use; FAILED_PRECONDITION this process
  //   is already waiting there.
  absl::Status Barrier(absl::string_view id, absl::Duration timeout, std::vector<int> nodes = {});
  void BarrierAsync(absl::string_view id, absl::Duration timeout, std::vector<int> nodes,
                    StatusCallback done);
  // Ends the barrier at which this process waits, with CANCELLED for all.
  //   Errors: FAILED_PRECONDITION if it does not wait there.
  absl::Status CancelBarrier(absl::string_view id);

  // Returns the live nodes among `nodes` (which include this one), with their incarnations; waits
  // until each live one has called this.
  absl::StatusOr<std::vector<std::pair<int, uint64_t>>> AliveNodes(std::vector<int> nodes,
                                                                   absl::Duration timeout);
  // Waits until the table has moved past `version`; -1 answers at once, with every node, otherwise
  // with those that have changed since (and maybe others). `done` as for GetAllAsync.
  void WatchTasksAsync(int64_t version, Callback<NodeTable> done);
  // For sessions without a node, which start nodes of the job later: waits until the job cannot
  // start because of a process that cannot join (cannot_join above), and ends with that process's
  // error, usually FAILED_PRECONDITION; never OK.
  //   Errors: UNIMPLEMENTED from a coordinator of an earlier version.
  void WatchJoiningAsync(StatusCallback done);
  // Sends this node's devices and waits for those of all nodes.
  absl::StatusOr<GlobalTopology> Enumerate(const LocalTopology& local, absl::Duration timeout);
  // The devices of all nodes; NOT_FOUND before they are known.
  absl::StatusOr<GlobalTopology> Topology();
  absl::StatusOr<JobStatus> Status();

  // Shown with the node in status reports; grows with the work done. Sent with the heartbeats.
  void SetProgress(uint64_t progress);
  // Fails the job with this node's error.
  absl::Status ReportError(const absl::Status& error);
  // Leaves together with all nodes.
  absl::Status Shutdown();
  // Leaves immediately.
  absl::Status Leave();
  // Ends the job for all nodes, so that the next registration starts another.
  //   force: even if the job is healthy.
  //   auth_tag: that this process knows the job's token, where the coordinator requires it.
  //   Errors: FAILED_PRECONDITION the job is healthy, and not `force`; PERMISSION_DENIED.
  absl::Status EndJob(absl::string_view why, bool force, absl::string_view auth_tag);

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_H_
