// SPDX-License-Identifier: Apache-2.0
// ElasticRendezvous: which nodes of a PyTorch job run together, in which order, with which store.
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
  // The limit of all runs together.
  size_t max_agents = 65536;
  // How long an agent whose connection has ended may take to come back over another one.
  absl::Duration reconnect_grace = absl::Seconds(2);
  // How long a closed run refuses nodes after its last agent has left.
  absl::Duration closed_linger = absl::Seconds(1);
};

// Names a run: agents of torchrun and ranks of init_process_group() have ids of their own.
struct ElasticRunId {
  std::string name;
  // The members are ranks, whose numbers they know, instead of nodes.
  bool is_group = false;

  auto operator<=>(const ElasticRunId&) const = default;
};

// An agent's wish to be in the next round of its run.
struct ElasticJoin {
  ElasticRunId run;
  // Unique for each process that joins; the same for all of its calls.
  std::string agent;
  // Where it runs, for people.
  std::string host;
  // Grows with each wish of the agent. One that is repeated, after a connection was lost, has the
  // number of the first time.
  int64_t attempt = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  // Groups only: the number of this rank.
  int rank = -1;
  // A round begins when max_nodes have joined, or when this has passed since min_nodes have.
  absl::Duration last_call_timeout = absl::Seconds(30);
  absl::Duration join_timeout = absl::Minutes(10);
  // An agent that is silent for longer is dead.
  absl::Duration heartbeat_timeout = absl::Seconds(15);
};

// An agent's place in a round.
struct ElasticPlace {
  int64_t round = 0;
  int rank = 0;
  int nodes = 0;
  // The port of this round's store.
  int port = 0;
};

// The answer to a heartbeat.
struct ElasticNews {
  // The number of the run's latest round; -1 if there was none.
  int64_t round = -1;
  // False if the run does not know the agent, for example since it was silent for too long.
  bool is_known = false;
  bool is_closed = false;
  // Nodes that wait for the next round, or the nodes that the running round has lost if those are
  // more: if not 0, the members should join again.
  int waiting = 0;
};

// One agent, for reports.
struct ElasticAgentReport {
  std::string agent;
  std::string host;
  // In the running round; -1 for an agent that waits for the next one, or that has lost its place.
  int rank = -1;
  bool is_waiting = false;
  // Groups only: the rank that it wants.
  int wanted_rank = -1;
  // Since it began to wait.
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

// Opens the stores of rounds, each a scope of its own.
class ElasticStores {
 public:
  virtual ~ElasticStores() = default;
  // Returns the port.
  virtual absl::StatusOr<int> Open(const std::string& scope) = 0;
  virtual void Close(const std::string& scope) = 0;
};

// Not thread-safe. Pure: no threads and no I/O but that of `stores`. Callbacks are queued in
// `completions`. A run is an id that agents share. Its life, as in torchelastic's dynamic
// rendezvous:
//
//  1. Agents join. When max_nodes have, or min_nodes have and the last call is over, a round
//  begins:
//     every agent gets a rank and the port of the round's store, which is new and empty.
//  2. An agent that joins while a round runs waits for the next one, and is counted (ElasticNews),
//     as are members that have died. The other members ask for that number and join again; when
//     no member is left, the next round begins as the first one did. An agent for which a full
//     round has no room is a spare: it is not counted and waits without limit.
//  3. A member that stays keeps its rank if there are as many nodes. The ranks that are left go to
//     members whose own are too large, then to new agents in the order of their hosts.
//  4. A group is a run whose agents know their ranks: a round begins when all of them have joined.
//     Members that do not join do not delay it, unless another process wants their rank.
//  5. Once it is closed, a run refuses agents, until all have left; then its id is free again. A
//     run that has no agents is forgotten.
class ElasticRendezvous final {
 public:
  static constexpr int kMaxNodes = 65536;
  static constexpr size_t kMaxNameBytes = 256;
  // The scopes of a run's stores have names that contain its own; see TcpStoreScopes.
  static constexpr size_t kMaxRunNameBytes = 224;
  static constexpr absl::Duration kMaxTimeout = absl::Hours(7 * 24);

  using JoinCallback = absl::AnyInvocable<void(absl::StatusOr<ElasticPlace>) &&>;

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

  // Joins the next round. An agent that is a member of the running one leaves it. Such a call with
  // the same attempt as before only asks for the answer once more.
  //   connection: where the agent can be reached; see Detach.
  //   Errors: INVALID_ARGUMENT for a value that is out of range, or for other sizes than those of
  //   the run; FAILED_PRECONDITION if the run is closed, CANCELLED if it is closed while the agent
  //   is a spare; DEADLINE_EXCEEDED names those that have joined, and the missing; ALREADY_EXISTS
  //   if another process has joined with the rank; ABORTED if a later call of the agent replaces
  //   this one or it has left; UNAVAILABLE if it has died; RESOURCE_EXHAUSTED for a limit, or with
  //   the reason for which there is no store.
  void Join(ElasticJoin join, uint64_t connection, JoinCallback done);
  // A sign of life.
  ElasticNews KeepAlive(const ElasticRunId& run, absl::string_view agent, uint64_t connection);
  // Ends the run for all agents. A run that does not exist stays so.
  void Close(const ElasticRunId& run, absl::string_view agent);
  // The agent is gone, and knows it.
  void Leave(const ElasticRunId& run, absl::string_view agent);
  // The connection has ended. An agent that comes back over another one in time loses nothing; one
  // that already has is not affected.
  void Detach(const ElasticRunId& run, absl::string_view agent, uint64_t connection);

  // Ends waits and agents whose time is over. Call it at least every 100 ms while not empty.
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
    // The order of arrival, and since when it waits.
    uint64_t order = 0;
    absl::Time since;
    absl::Time deadline;
    // Null if it does not wait.
    JoinCallback done;
    // In the running round, or -1; and in the last round in which it was.
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
    // Numbers of the running round, and of those that wait for the next one.
    int members = 0;
    int lost = 0;
    int joiners = 0;
    absl::Time last_call = absl::InfiniteFuture();
    Agents agents;
    // Agents that have waited for the next round in vain, which may be gone; at most kMaxGivenUp.
    absl::btree_map<std::string, ElasticJoin> given_up;
  };
  using Runs = absl::btree_map<ElasticRunId, Run>;

  static constexpr size_t kMaxGivenUp = 4096;
  // At most so many lines about agents that have ended are logged in this time.
  static constexpr size_t kMaxLines = 20;
  static constexpr absl::Duration kLinesPeriod = absl::Seconds(10);

  absl::Status CheckJoin(const ElasticJoin& join) const;
  // The error with which the run refuses the agent, if it does.
  absl::Status CheckRun(const Run& run, const ElasticJoin& join) const;
  void Answer(Run& run, Agent& agent, absl::StatusOr<ElasticPlace> answer);
  // The agent is not a member any more.
  void LeaveRound(Run& run, Agent& agent);
  void Remove(Run& run, Agents::iterator agent, const absl::Status& why, bool is_lost);
  // Takes effect of a change: begins a round if it can, or refuses agents.
  void Settle(const ElasticRunId& id, Run& run);
  bool IsBlocked(const ElasticRunId& id, const Run& run) const;
  void BeginRound(const ElasticRunId& id, Run& run);
  // The agents of the next round, each at the index of its rank.
  static std::vector<Agent*> AssignRanks(const ElasticRunId& id, Run& run);
  bool IsSpare(const Run& run, const Agent& agent) const;
  void EndWaits(const ElasticRunId& id, Run& run);
  // Who has joined the next round, and who is missing, for errors: takes time for each agent.
  std::string NextRoundText(const ElasticRunId& id, const Run& run) const;
  void CloseScope(Run& run);
  // Forgets the run if nothing is left of it. Returns the next one.
  Runs::iterator EndIfUnused(Runs::iterator run);

  const ElasticOptions& options_;
  const Clock& clock_;
  Completions& completions_;
  ElasticStores& stores_;
  LogLimiter log_;
  Runs runs_;
  size_t agents_ = 0;
  uint64_t last_order_ = 0;
  // So that a round never has the store of an earlier one, whose clients may still be connected.
  uint64_t last_scope_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_ELASTIC_ELASTIC_RENDEZVOUS_H_
