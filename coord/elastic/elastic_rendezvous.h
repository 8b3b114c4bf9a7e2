// SPDX-License-Identifier: Apache-2.0
// ElasticRendezvous: torchelastic's dynamic rendezvous, which assigns nodes to rounds, ranks and
// stores.
#ifndef FERRY_COORD_ELASTIC_ELASTIC_RENDEZVOUS_H_
#define FERRY_COORD_ELASTIC_ELASTIC_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/log_limiter.h"
#include "coord/core/completions.h"

namespace ferry::coord {

struct ElasticOptions {
  size_t max_runs = 1024;
  // The limit on agents of all runs together.
  size_t max_agents = 65536;
  // How long an agent whose connection has ended has to reconnect before it is considered dead.
  absl::Duration reconnect_grace = absl::Seconds(2);
  // How long a closed run still refuses agents after its last agent has left.
  absl::Duration closed_linger = absl::Seconds(1);
};

// Identifies a run. Runs of torchrun's agents and groups of init_process_group() have separate name
// spaces.
struct ElasticRunId {
  std::string name;
  // The members are processes with given ranks (ferry://), instead of torchrun's agents.
  bool is_group = false;

  auto operator<=>(const ElasticRunId&) const = default;
};

// A request of an agent to join the next round of its run.
struct ElasticJoin {
  ElasticRunId run;
  // Unique per process, and the same in all of its calls.
  std::string agent;
  // The host name of the agent, for error messages and for the order of ranks.
  std::string host;
  // Increases with each call of Join. A retry over another connection has the number of the
  // original call.
  int64_t attempt = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  // Groups only: the rank of this process.
  int rank = -1;
  // A round begins when max_nodes have joined, or this long after min_nodes have.
  absl::Duration last_call_timeout = absl::Seconds(30);
  absl::Duration join_timeout = absl::Minutes(10);
  // An agent that sends nothing for longer is considered dead.
  absl::Duration heartbeat_timeout = absl::Seconds(15);
};

// The result of a successful Join.
struct ElasticAssignment {
  int64_t round = 0;
  int rank = 0;
  int nodes = 0;
  // The port of this round's store.
  int port = 0;
};

// The state of a run, as the reply to a heartbeat.
struct ElasticRunState {
  // The number of the run's latest round; -1 if there was none.
  int64_t round = -1;
  // False if the agent is not in the run, for example because its heartbeats had timed out.
  bool is_known = false;
  bool is_closed = false;
  // The number of agents that wait for the next round, or of members that the running round has
  // lost, whichever is larger. If not 0, the members should join again.
  int waiting = 0;
};

// One agent, for reports.
struct ElasticAgentReport {
  std::string agent;
  std::string host;
  // The rank in the running round; -1 if it is not a member.
  int rank = -1;
  bool is_waiting = false;
  // Groups only: the rank that it wants.
  int wanted_rank = -1;
  // How long it has waited; 0 if it does not wait.
  absl::Duration age;
  // Its connection has ended.
  bool is_detached = false;
};

struct ElasticRunReport {
  ElasticRunId id;
  int min_nodes = 0;
  int max_nodes = 0;
  int64_t round = -1;
  bool is_closed = false;
  // The store of the running round; 0 and empty if there is none.
  int port = 0;
  std::string scope;
  std::vector<ElasticAgentReport> agents;
};

// Opens a store for each round, as a scope.
class ElasticStores {
 public:
  virtual ~ElasticStores() = default;
  // Returns the port.
  virtual absl::StatusOr<int> Open(const std::string& scope) = 0;
  virtual void Close(const std::string& scope) = 0;
};

// Not thread-safe. Pure: no threads, and no I/O except that of `stores`. Callbacks are queued in
// `completions`. A run is the set of agents that use the same id, with the semantics of
// torchelastic's dynamic rendezvous:
//
//  1. Agents join. When max_nodes have joined, or last_call_timeout after min_nodes have, a round
//     begins: every agent gets a rank and the port of the round's store, which is new and empty.
//  2. An agent that joins while a round runs waits for the next one, and is counted in
//     ElasticRunState::waiting, as are members that have died. The other members poll that number
//     and join again; when none is left in the round, the next one begins as the first did. If the
//     round has max_nodes, the agent is a spare: it is not counted, and waits without a timeout.
//  3. A member keeps its rank in the next round unless the rank is too large for the number of
//     nodes. Free ranks go to such members first, then to new agents ordered by host.
//  4. A group is a run whose agents have fixed ranks: a round begins when all of them have joined.
//     Members of the last round that have not joined again do not delay it, unless another process
//     joins with the rank of one of them.
//  5. A closed run refuses agents until all of its agents have left; then its id can be reused. A
//  run
//     without agents is removed.
class ElasticRendezvous final {
 public:
  static constexpr int kMaxNodes = 65536;
  static constexpr size_t kMaxNameBytes = 256;
  // The scopes of a run's stores have names that contain its own; see TcpStoreScopes.
  static constexpr size_t kMaxRunNameBytes = 224;
  static constexpr absl::Duration kMaxTimeout = absl::Hours(7 * 24);

  using JoinCallback = absl::AnyInvocable<void(absl::StatusOr<ElasticAssignment>) &&>;

  // All outlive it.
  ElasticRendezvous(const ElasticOptions& options, const Clock& clock, Completions& completions,
                    ElasticStores& stores)
      : options_(options),
        clock_(clock),
        completions_(completions),
        stores_(stores),
        log_(clock, kMaxLines, kLinesPeriod) {}

  // Returns OK if a run and an agent may have these names.
  static absl::Status CheckNames(const ElasticRunId& run, absl::string_view agent);

  // Joins the next round; an agent that is a member of the running one leaves it. A call with the
  // same attempt as the last one is a retry, and gets the same result.
  //   connection: the id of the agent's connection; see Detach.
  //   Errors: INVALID_ARGUMENT if a value is out of range, or min_nodes or max_nodes differ from
  //   those of the run; FAILED_PRECONDITION if the run is closed, CANCELLED if it is closed while
  //   the agent is a spare; DEADLINE_EXCEEDED, with the agents that have joined and those that are
  //   missing; ALREADY_EXISTS if another process has joined with the rank; ABORTED if a later call
  //   of the agent supersedes this one, or the agent leaves; UNAVAILABLE if it is considered dead;
  //   RESOURCE_EXHAUSTED for a limit, or if no store can be opened.
  void Join(ElasticJoin join, uint64_t connection, JoinCallback done);
  // Handles a heartbeat.
  ElasticRunState KeepAlive(const ElasticRunId& run, absl::string_view agent, uint64_t connection);
  // Closes the run for all agents; does nothing if it does not exist.
  void Close(const ElasticRunId& run, absl::string_view agent);
  // Removes an agent that shuts down.
  void Leave(const ElasticRunId& run, absl::string_view agent);
  // The connection has ended: the agent has reconnect_grace to use another one. Does nothing if it
  // already has.
  void Detach(const ElasticRunId& run, absl::string_view agent, uint64_t connection);

  // Applies timeouts. Must be called at least every 100 ms while not empty().
  void Advance();
  // Ends all waits with UNAVAILABLE, and all runs.
  void Stop();
  bool empty() const { return runs_.empty(); }

  std::vector<ElasticRunReport> Report() const;

 private:
  struct Agent {
    ElasticJoin join;
    uint64_t connection = 0;
    bool is_detached = false;
    absl::Time expires;
    // The order of arrival, when it began to wait, and when the join times out.
    uint64_t order = 0;
    absl::Time since;
    absl::Time deadline;
    // Null if it is not waiting.
    JoinCallback done;
    // The rank in the running round, or -1; and the rank in former_round, the last one it was in.
    int rank = -1;
    int former_rank = -1;
    int64_t former_round = -1;
  };
  using Agents = absl::btree_map<std::string, Agent, std::less<>>;
  struct Run {
    int min_nodes = 0;
    int max_nodes = 0;
    int64_t round = -1;
    int nodes = 0;
    int port = 0;
    std::string scope;
    bool is_closed = false;
    std::string closed_by;
    absl::Time last_left;
    // The number of members of the running round, of members that it has lost, and of agents that
    // wait for the next round.
    int members = 0;
    int lost = 0;
    int joiners = 0;
    absl::Time last_call = absl::InfiniteFuture();
    Agents agents;
    // Joins for the next round that have timed out, by agent; at most kMaxTimedOutJoins.
    absl::btree_map<std::string, ElasticJoin> timed_out_joins;
  };
  using Runs = absl::btree_map<ElasticRunId, Run>;

  static constexpr size_t kMaxTimedOutJoins = 4096;
  // At most so many lines about agents that have ended are logged in this time.
  static constexpr size_t kMaxLines = 20;
  static constexpr absl::Duration kLinesPeriod = absl::Seconds(10);

  absl::Status CheckJoin(const ElasticJoin& join) const;
  // Returns an error if the run refuses the agent.
  absl::Status CheckRun(const Run& run, const ElasticJoin& join) const;
  void Answer(Run& run, Agent& agent, absl::StatusOr<ElasticAssignment> answer);
  // Ends the agent's membership in the running round.
  void LeaveRound(Run& run, Agent& agent);
  void Remove(Run& run, Agents::iterator agent, const absl::Status& why, bool is_lost);
  // Called after each change: begins a round if possible, or refuses agents if the run is closed.
  void Evaluate(const ElasticRunId& id, Run& run);
  bool IsBlocked(const ElasticRunId& id, const Run& run) const;
  void BeginRound(const ElasticRunId& id, Run& run);
  // Returns the agents of the next round, indexed by rank.
  static std::vector<Agent*> AssignRanks(const ElasticRunId& id, Run& run);
  bool IsSpare(const Run& run, const Agent& agent) const;
  void ExpireJoins(const ElasticRunId& id, Run& run);
  // Describes which agents have joined the next round and which are missing, for errors. O(agents).
  std::string NextRoundText(const ElasticRunId& id, const Run& run) const;
  void CloseScope(Run& run);
  // Removes the run if it has ended. Returns the next one.
  Runs::iterator EndIfUnused(Runs::iterator run);

  const ElasticOptions& options_;
  const Clock& clock_;
  Completions& completions_;
  ElasticStores& stores_;
  LogLimiter log_;
  Runs runs_;
  size_t agents_ = 0;
  // Those of all runs; at most max_agents.
  size_t timed_out_joins_ = 0;
  uint64_t last_order_ = 0;
  // Makes scope names unique, since clients of an earlier round's store may still be connected.
  uint64_t last_scope_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_ELASTIC_ELASTIC_RENDEZVOUS_H_
