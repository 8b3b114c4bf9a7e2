// SPDX-License-Identifier: Apache-2.0
// Decides when a round begins, and with which agents.
#include "coord/elastic/elastic_rendezvous.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/logging.h"
#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {
namespace {

// The number of names in an error message.
constexpr size_t kMaxNamesInError = 16;
constexpr absl::Duration kMinHeartbeatTimeout = absl::Seconds(1);

std::string RunText(const ElasticRunId& id) {
  return absl::StrCat(id.is_group ? "group " : "run ", Quoted(id.name));
}

// Counts those that it does not show, which may be thousands for each of thousands of errors.
class ShownNames {
 public:
  // `name` is called if its result is shown.
  void Add(absl::FunctionRef<std::string()> name) {
    if (count_++ < kMaxNamesInError) names_.push_back(name());
  }
  void AddUnnamed(size_t count) { count_ += count; }
  // Shows no more.
  bool is_full() const { return names_.size() == kMaxNamesInError; }
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  std::string Text() const {
    std::string text = absl::StrJoin(names_, ", ");
    if (count_ > names_.size()) absl::StrAppend(&text, " and ", count_ - names_.size(), " more");
    return text;
  }

 private:
  std::vector<std::string> names_;
  size_t count_ = 0;
};

std::string AgentText(const ElasticJoin& join) {
  return absl::StrCat(Quoted(join.host), " (", Quoted(join.agent), ")");
}

std::string SizesText(int min_nodes, int max_nodes) {
  return min_nodes == max_nodes ? absl::StrCat(min_nodes)
                                : absl::StrCat(min_nodes, " to ", max_nodes);
}

std::string NodesText(long long count) {
  return absl::StrCat(count, count == 1 ? " node" : " nodes");
}

absl::Status CheckName(absl::string_view what, absl::string_view name,
                       size_t max_bytes = ElasticRendezvous::kMaxNameBytes) {
  if (name.empty()) return absl::InvalidArgumentError(absl::StrCat("the ", what, " is empty"));
  if (name.size() <= max_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", what, " has ", name.size(), " bytes, over the limit of ", max_bytes));
}

absl::Status CheckTimeout(absl::string_view what, absl::Duration timeout, absl::Duration least) {
  if (timeout >= least && timeout <= ElasticRendezvous::kMaxTimeout) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", what, " timeout is ", absl::FormatDuration(timeout), "; it must be ",
      absl::FormatDuration(least), " to ", absl::FormatDuration(ElasticRendezvous::kMaxTimeout)));
}

}  // namespace

absl::Status ElasticRendezvous::CheckNames(const ElasticRunId& run, absl::string_view agent) {
  FERRY_RETURN_IF_ERROR(CheckName("run id", run.name, kMaxRunNameBytes));
  // No scope of a store may have such a name.
  if (std::any_of(run.name.begin(), run.name.end(), absl::ascii_iscntrl)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the run id ", Quoted(run.name), " has a control character"));
  }
  return CheckName("agent's id", agent);
}

absl::Status ElasticRendezvous::CheckJoin(const ElasticJoin& join) const {
  for (const absl::Status& status :
       {CheckNames(join.run, join.agent), CheckName("host", join.host),
        CheckTimeout("last call", join.last_call_timeout, absl::ZeroDuration()),
        CheckTimeout("join", join.join_timeout, absl::Milliseconds(1)),
        CheckTimeout("heartbeat", join.heartbeat_timeout, kMinHeartbeatTimeout)}) {
    if (!status.ok()) return status;
  }
  if (join.min_nodes < 1 || join.max_nodes < join.min_nodes || join.max_nodes > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat(RunText(join.run), ": ", AgentText(join), " asks for ", join.min_nodes, " to ",
                     join.max_nodes, " nodes; the range is 1 to ", kMaxNodes));
  }
  if (!join.run.is_group) return absl::OkStatus();
  if (join.min_nodes != join.max_nodes || join.rank < 0 || join.rank >= join.max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat(RunText(join.run), ": rank ", join.rank, " of ",
                                                   AgentText(join), " is not in the range 0 to ",
                                                   join.max_nodes - 1));
  }
  return absl::OkStatus();
}

absl::Status ElasticRendezvous::CheckRun(const Run& run, const ElasticJoin& join) const {
  if (run.is_closed) {
    ShownNames left;
    for (const auto& [name, agent] : run.agents) {
      if (left.is_full()) break;
      left.Add([&join = agent.join] { return AgentText(join); });
    }
    left.AddUnnamed(run.agents.size() - left.size());
    return absl::FailedPreconditionError(
        absl::StrCat(RunText(join.run), " was closed by ", run.closed_by,
                     " and accepts no more nodes; its id can be reused once all nodes have left",
                     left.empty() ? "" : absl::StrCat("; still there: ", left.Text())));
  }
  for (const auto& [name, agent] : run.agents) {
    if (name == join.agent || (join.run.is_group && !agent.done)) continue;
    if (run.min_nodes != join.min_nodes || run.max_nodes != join.max_nodes) {
      return absl::InvalidArgumentError(absl::StrCat(
          RunText(join.run), " has ", SizesText(run.min_nodes, run.max_nodes), " nodes, set by ",
          AgentText(agent.join), ", but ", AgentText(join), " asks for ",
          SizesText(join.min_nodes, join.max_nodes), "; concurrent runs need different ids"));
    }
    if (join.run.is_group && agent.join.rank == join.rank && !agent.is_detached) {
      return absl::AlreadyExistsError(
          absl::StrCat(RunText(join.run), ": ", AgentText(join), " cannot join as rank ", join.rank,
                       ", which has joined already, from ", AgentText(agent.join),
                       "; concurrent groups need different run ids"));
    }
  }
  return absl::OkStatus();
}

void ElasticRendezvous::Join(ElasticJoin join, uint64_t connection, JoinCallback done) {
  absl::Status status = CheckJoin(join);
  auto found = runs_.find(join.run);
  if (status.ok() && found == runs_.end() && runs_.size() >= options_.max_runs) {
    status = absl::ResourceExhaustedError(absl::StrCat(RunText(join.run), ": the coordinator has ",
                                                       runs_.size(), " runs, which is the limit"));
  }
  if (status.ok() && found != runs_.end()) status = CheckRun(found->second, join);
  const bool is_new =
      found == runs_.end() || found->second.agents.find(join.agent) == found->second.agents.end();
  if (status.ok() && is_new && agents_ >= options_.max_agents) {
    status =
        absl::ResourceExhaustedError(absl::StrCat(RunText(join.run), ": the coordinator has ",
                                                  agents_, " PyTorch agents, which is the limit"));
  }
  if (!status.ok())
    return completions_.Post(std::move(done), absl::StatusOr<ElasticAssignment>(status));

  if (found == runs_.end()) found = runs_.emplace(join.run, Run()).first;
  const ElasticRunId& id = found->first;
  Run& run = found->second;
  if (id.is_group) {
    // This process replaces one whose connection has ended, which CheckRun lets pass.
    for (auto other = run.agents.begin(); other != run.agents.end(); ++other) {
      if (other->first == join.agent || !other->second.done) continue;
      if (other->second.join.rank != join.rank) continue;
      Remove(run, other, absl::UnavailableError("another process has joined with the rank"), true);
      break;
    }
  }
  const absl::Time now = clock_.Now();
  Agent& agent = run.agents[join.agent];
  if (is_new) ++agents_;
  const bool is_repeated = !is_new && agent.join.attempt == join.attempt;
  if (!is_new && agent.join.attempt > join.attempt) {
    return completions_.Post(std::move(done),
                             absl::StatusOr<ElasticAssignment>(absl::AbortedError(
                                 "this call arrived after a later one of the same agent")));
  }
  agent.connection = connection;
  agent.is_detached = false;
  agent.expires = now + join.heartbeat_timeout;
  if (is_repeated && agent.rank >= 0) {
    const ElasticAssignment assignment{run.round, agent.rank, run.nodes, run.port};
    return completions_.Post(std::move(done), absl::StatusOr<ElasticAssignment>(assignment));
  }
  const bool is_still_waiting = is_repeated && agent.done;
  if (agent.done) {
    Answer(run, agent, absl::AbortedError("superseded by a later call of this agent"));
  }
  LeaveRound(run, agent);
  timed_out_joins_ -= run.timed_out_joins.erase(join.agent);
  if (!is_still_waiting) {
    agent.since = now;
    agent.deadline = now + join.join_timeout;
    agent.order = ++last_order_;
  }
  run.min_nodes = join.min_nodes;
  run.max_nodes = join.max_nodes;
  agent.join = std::move(join);
  agent.done = std::move(done);
  ++run.joiners;
  Evaluate(id, run);
}

void ElasticRendezvous::Answer(Run& run, Agent& agent, absl::StatusOr<ElasticAssignment> answer) {
  --run.joiners;
  completions_.Post(std::exchange(agent.done, nullptr), std::move(answer));
}

void ElasticRendezvous::LeaveRound(Run& run, Agent& agent) {
  if (agent.rank < 0) return;
  agent.rank = -1;
  if (run.members-- < run.max_nodes || agent.join.run.is_group) return;
  // There is room for spares now, so their join timeouts start.
  for (auto& [name, spare] : run.agents) {
    if (spare.done) spare.deadline = clock_.Now() + spare.join.join_timeout;
  }
}

void ElasticRendezvous::Remove(Run& run, Agents::iterator agent, const absl::Status& why,
                               bool is_lost) {
  if (agent->second.done) Answer(run, agent->second, why);
  if (agent->second.rank >= 0 && is_lost) ++run.lost;
  LeaveRound(run, agent->second);
  run.agents.erase(agent);
  --agents_;
  run.last_left = clock_.Now();
}

ElasticRunState ElasticRendezvous::KeepAlive(const ElasticRunId& id, absl::string_view name,
                                             uint64_t connection) {
  ElasticRunState state;
  const auto found = runs_.find(id);
  if (found == runs_.end()) return state;
  Run& run = found->second;
  state.round = run.round;
  state.is_closed = run.is_closed;
  if (run.members > 0 && !run.is_closed) {
    state.waiting = std::max(std::min(run.joiners, run.max_nodes - run.members), run.lost);
  }
  const auto agent = run.agents.find(name);
  if (agent == run.agents.end()) return state;
  state.is_known = true;
  agent->second.connection = connection;
  agent->second.is_detached = false;
  agent->second.expires = clock_.Now() + agent->second.join.heartbeat_timeout;
  return state;
}

void ElasticRendezvous::Close(const ElasticRunId& id, absl::string_view agent) {
  const auto found = runs_.find(id);
  if (found == runs_.end() || found->second.is_closed) return;
  Run& run = found->second;
  run.is_closed = true;
  run.last_left = clock_.Now();
  const auto by = run.agents.find(agent);
  run.closed_by = by == run.agents.end() ? Quoted(agent) : AgentText(by->second.join);
  FERRY_LOG_INFO(kCoord, "closed a PyTorch run: run={} by={}", Quoted(id.name), run.closed_by);
  Evaluate(id, run);
}

void ElasticRendezvous::Leave(const ElasticRunId& id, absl::string_view name) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  const auto agent = found->second.agents.find(name);
  if (agent == found->second.agents.end()) return;
  Remove(found->second, agent, absl::AbortedError("this agent has left"), /*is_lost=*/true);
  Evaluate(id, found->second);
  EndIfUnused(found);
}

void ElasticRendezvous::Detach(const ElasticRunId& id, absl::string_view name,
                               uint64_t connection) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  const auto agent = found->second.agents.find(name);
  if (agent == found->second.agents.end() || agent->second.connection != connection) return;
  agent->second.is_detached = true;
  agent->second.expires = std::min(agent->second.expires, clock_.Now() + options_.reconnect_grace);
}

void ElasticRendezvous::Evaluate(const ElasticRunId& id, Run& run) {
  if (run.is_closed) {
    for (auto& [name, agent] : run.agents) {
      if (!agent.done) continue;
      const std::string text = absl::StrCat(RunText(id), " was closed by ", run.closed_by);
      Answer(run, agent,
             IsSpare(run, agent) ? absl::CancelledError(absl::StrCat(
                                       text, "; this node was a spare and is not needed"))
                                 : absl::FailedPreconditionError(text));
    }
    return;
  }
  if (run.joiners < run.min_nodes || IsBlocked(id, run)) {
    run.last_call = absl::InfiniteFuture();
    return;
  }
  if (run.joiners < run.max_nodes) {
    if (run.last_call == absl::InfiniteFuture()) {
      // The timeout of the agent that completed min_nodes. The round begins before any agent's join
      // times out.
      const Agent* last = nullptr;
      absl::Time earliest = absl::InfiniteFuture();
      for (const auto& [name, agent] : run.agents) {
        if (!agent.done) continue;
        if (last == nullptr || agent.order > last->order) last = &agent;
        earliest = std::min(earliest, agent.deadline);
      }
      run.last_call = std::min(clock_.Now() + last->join.last_call_timeout, earliest);
    }
    if (clock_.Now() < run.last_call) return;
  }
  BeginRound(id, run);
}

bool ElasticRendezvous::IsBlocked(const ElasticRunId& id, const Run& run) const {
  if (!id.is_group) return run.members > 0;
  std::vector<bool> is_wanted(static_cast<size_t>(run.max_nodes));
  for (const auto& [name, agent] : run.agents) {
    if (agent.done) is_wanted[static_cast<size_t>(agent.join.rank)] = true;
  }
  for (const auto& [name, agent] : run.agents) {
    if (agent.rank >= 0 && agent.rank < run.max_nodes && is_wanted[static_cast<size_t>(agent.rank)])
      return true;
  }
  return false;
}

std::vector<ElasticRendezvous::Agent*> ElasticRendezvous::AssignRanks(const ElasticRunId& id,
                                                                      Run& run) {
  std::vector<Agent*> joiners;
  for (auto& [name, agent] : run.agents) {
    if (agent.done) joiners.push_back(&agent);
  }
  const size_t count = std::min(joiners.size(), static_cast<size_t>(run.max_nodes));
  std::vector<Agent*> placed(count);
  if (id.is_group) {
    for (Agent* agent : joiners) placed[static_cast<size_t>(agent->join.rank)] = agent;
    return placed;
  }
  // Members of the last round come first, then the others in the order of arrival.
  const auto is_former = [&run](const Agent* a) {
    return a->former_rank >= 0 && a->former_round == run.round;
  };
  std::sort(joiners.begin(), joiners.end(), [&](const Agent* a, const Agent* b) {
    if (is_former(a) != is_former(b)) return is_former(a);
    return is_former(a) ? a->former_rank < b->former_rank : a->order < b->order;
  });
  joiners.resize(count);
  std::vector<Agent*> others;
  for (Agent* agent : joiners) {
    const auto rank = static_cast<size_t>(agent->former_rank);
    if (is_former(agent) && rank < count) {
      placed[rank] = agent;
    } else {
      others.push_back(agent);
    }
  }
  // New agents are ordered by host, so that ranks do not depend on the order of arrival.
  std::stable_sort(others.begin(), others.end(), [&](const Agent* a, const Agent* b) {
    if (is_former(a) || is_former(b)) return is_former(a) && !is_former(b);
    return std::tie(a->join.host, a->order) < std::tie(b->join.host, b->order);
  });
  auto next = others.begin();
  for (Agent*& place : placed) {
    if (place == nullptr) place = *next++;
  }
  return placed;
}

void ElasticRendezvous::BeginRound(const ElasticRunId& id, Run& run) {
  run.last_call = absl::InfiniteFuture();
  const std::vector<Agent*> placed = AssignRanks(id, run);
  const std::string scope =
      absl::StrCat(id.is_group ? "group/" : "elastic/", id.name, "/", ++last_scope_);
  const absl::StatusOr<int> port = stores_.Open(scope);
  if (!port.ok()) {
    for (Agent* agent : placed) {
      Answer(run, *agent,
             absl::ResourceExhaustedError(absl::StrCat(
                 RunText(id), ": cannot open a store for the round: ", port.status().message())));
    }
    return;
  }
  CloseScope(run);
  // In a group, members of the old round may not have joined again.
  for (auto& [name, agent] : run.agents) LeaveRound(run, agent);
  ++run.round;
  run.scope = scope;
  run.port = *port;
  run.lost = 0;
  timed_out_joins_ -= run.timed_out_joins.size();
  run.timed_out_joins.clear();
  run.nodes = static_cast<int>(placed.size());
  FERRY_LOG_INFO(kCoord, "began a round of a PyTorch run: run={} round={} nodes={} port={}",
                 Quoted(id.name), run.round, run.nodes, run.port);
  for (size_t rank = 0; rank < placed.size(); ++rank) {
    Agent& agent = *placed[rank];
    agent.rank = agent.former_rank = static_cast<int>(rank);
    agent.former_round = run.round;
    ++run.members;
    Answer(run, agent, ElasticAssignment{run.round, agent.rank, run.nodes, run.port});
  }
}

bool ElasticRendezvous::IsSpare(const Run& run, const Agent& agent) const {
  return agent.done && !agent.join.run.is_group && run.members >= run.max_nodes;
}

std::string ElasticRendezvous::NextRoundText(const ElasticRunId& id, const Run& run) const {
  ShownNames joined;
  ShownNames members;
  ShownNames timed_out_joins;
  std::vector<int> missing_ranks;
  std::vector<bool> has_come(static_cast<size_t>(run.max_nodes));
  const auto note = [&](ShownNames& names, const ElasticJoin& join) {
    if (id.is_group && join.rank < run.max_nodes) has_come[static_cast<size_t>(join.rank)] = true;
    names.Add([&] {
      return id.is_group ? absl::StrCat("rank ", join.rank, " on ", AgentText(join))
                         : AgentText(join);
    });
  };
  for (const auto& [name, agent] : run.agents) {
    if (agent.done) note(joined, agent.join);
    if (agent.rank >= 0) {
      members.Add([&agent = agent] {
        return absl::StrCat("rank ", agent.rank, " on ", AgentText(agent.join));
      });
    }
  }
  // They have come, though their time was over before this one's.
  for (const auto& [name, join] : run.timed_out_joins) note(timed_out_joins, join);
  for (int rank = 0; id.is_group && rank < run.max_nodes; ++rank) {
    if (!has_come[static_cast<size_t>(rank)]) missing_ranks.push_back(rank);
  }
  std::string text =
      absl::StrCat("round ", run.round + 1, ", for which ", run.joiners, " of ",
                   run.max_nodes > run.min_nodes ? "at least " : "", NodesText(run.min_nodes),
                   run.joiners == 1 ? " has" : " have", " joined: ", joined.Text());
  if (!timed_out_joins.empty()) {
    absl::StrAppend(&text, "; timed out before: ", timed_out_joins.Text());
  }
  const int missing = run.min_nodes - run.joiners - static_cast<int>(timed_out_joins.size());
  if (!missing_ranks.empty()) {
    absl::StrAppend(&text, missing_ranks.size() == 1 ? "; rank " : "; ranks ",
                    FormatRanges(missing_ranks),
                    missing_ranks.size() == 1 ? " is missing" : " are missing");
  } else if (!id.is_group && missing > 0) {
    absl::StrAppend(&text, "; ", NodesText(missing), missing == 1 ? " is missing" : " are missing");
  }
  if (!members.empty() && IsBlocked(id, run)) {
    absl::StrAppend(&text, "; still in round ", run.round, ": ", members.Text());
  }
  return text;
}

void ElasticRendezvous::ExpireJoins(const ElasticRunId& id, Run& run) {
  const absl::Time now = clock_.Now();
  std::vector<Agent*> late;
  for (auto& [name, agent] : run.agents) {
    if (!agent.done || agent.deadline > now) continue;
    if (IsSpare(run, agent)) {
      agent.deadline = now + agent.join.join_timeout;
    } else {
      late.push_back(&agent);
    }
  }
  if (late.empty()) return;
  // Thousands that began together give up together: they share the text.
  const std::string text = NextRoundText(id, run);
  if (log_.Allow()) {
    FERRY_LOG_WARN(kCoord, "PyTorch nodes timed out in rendezvous: run={} count={}: waited for {}",
                   Quoted(id.name), late.size(), text);
  }
  for (Agent* agent : late) {
    if (run.timed_out_joins.size() < kMaxTimedOutJoins && timed_out_joins_ < options_.max_agents &&
        run.timed_out_joins.insert_or_assign(agent->join.agent, agent->join).second) {
      ++timed_out_joins_;
    }
    Answer(run, *agent,
           absl::DeadlineExceededError(absl::StrCat(
               RunText(id), ": waited ", ShortDuration(agent->join.join_timeout), " for ", text)));
  }
  Evaluate(id, run);
}

void ElasticRendezvous::Advance() {
  const absl::Time now = clock_.Now();
  for (auto it = runs_.begin(); it != runs_.end();) {
    auto& [id, run] = *it;
    for (auto agent = run.agents.begin(); agent != run.agents.end();) {
      const auto next = std::next(agent);
      if (agent->second.expires <= now) {
        const std::string text =
            absl::StrCat(RunText(id), ": ", AgentText(agent->second.join),
                         agent->second.is_detached
                             ? " lost its connection to the coordinator and did not reconnect"
                             : absl::StrCat(" was silent for ",
                                            ShortDuration(agent->second.join.heartbeat_timeout)));
        if (log_.Allow()) FERRY_LOG_WARN(kCoord, "lost a PyTorch node: {}", text);
        const std::string name = agent->first;
        Remove(run, agent, absl::UnavailableError(text), /*is_lost=*/true);
        agent = run.agents.upper_bound(name);
      } else {
        agent = next;
      }
    }
    Evaluate(id, run);
    ExpireJoins(id, run);
    it = EndIfUnused(it);
  }
}

void ElasticRendezvous::CloseScope(Run& run) {
  if (!run.scope.empty()) stores_.Close(run.scope);
  run.scope.clear();
  run.port = 0;
}

ElasticRendezvous::Runs::iterator ElasticRendezvous::EndIfUnused(Runs::iterator run) {
  const bool is_over =
      !run->second.is_closed || clock_.Now() >= run->second.last_left + options_.closed_linger;
  if (!run->second.agents.empty() || !is_over) return std::next(run);
  CloseScope(run->second);
  timed_out_joins_ -= run->second.timed_out_joins.size();
  return runs_.erase(run);
}

void ElasticRendezvous::Stop() {
  for (auto& [id, run] : runs_) {
    for (auto& [name, agent] : run.agents) {
      if (agent.done) Answer(run, agent, absl::UnavailableError("the coordinator is stopping"));
    }
    CloseScope(run);
  }
  runs_.clear();
  agents_ = 0;
  timed_out_joins_ = 0;
}

std::vector<ElasticRunReport> ElasticRendezvous::Report() const {
  std::vector<ElasticRunReport> reports;
  const absl::Time now = clock_.Now();
  for (const auto& [id, run] : runs_) {
    ElasticRunReport report{.id = id,
                            .min_nodes = run.min_nodes,
                            .max_nodes = run.max_nodes,
                            .round = run.round,
                            .is_closed = run.is_closed,
                            .port = run.port,
                            .scope = run.scope};
    for (const auto& [name, agent] : run.agents) {
      const bool is_waiting = agent.done != nullptr;
      report.agents.push_back({.agent = name,
                               .host = agent.join.host,
                               .rank = agent.rank,
                               .is_waiting = is_waiting,
                               .wanted_rank = agent.join.rank,
                               .age = is_waiting ? now - agent.since : absl::ZeroDuration(),
                               .is_detached = agent.is_detached});
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace ferry::coord
