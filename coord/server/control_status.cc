// SPDX-License-Identifier: Apache-2.0
// Converts the status of the job to messages.
#include "coord/server/control_status.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "base/ranges.h"

namespace ferry::coord {
namespace {

// Arrival times are for display; a barrier of thousands is described by ranges.
constexpr int kMaxArrivals = 256;
// Limits of the report about PyTorch's stores: all waits and missing keys together, the keys of a
// wait, and the bytes shown of a key.
constexpr size_t kMaxStoreLines = 2048;
constexpr int kMaxKeysOfWait = 8;
constexpr size_t kMaxShownKeyBytes = 512;
// Agents of all runs of PyTorch that are reported.
constexpr size_t kMaxElasticAgents = 16384;

int64_t Age(absl::Time now, absl::Time since) {
  return since == absl::InfinitePast() ? -1 : absl::ToInt64Milliseconds(now - since);
}

std::string Ranges(const std::vector<TaskId>& tasks) {
  std::vector<int> numbers;
  numbers.reserve(tasks.size());
  for (const TaskId task : tasks) numbers.push_back(task.value());
  return FormatRanges(numbers);
}

void FillBarrier(const BarrierInfo& info, absl::Time now, v1::BarrierStatus& out) {
  out.set_id(info.id);
  out.set_counter(info.counter);
  out.set_total(static_cast<int>(info.arrived.size() + info.missing.size()));
  out.set_age_ms(Age(now, info.first_arrival));
  out.set_remaining_ms(info.deadline == absl::InfiniteFuture()
                           ? -1
                           : absl::ToInt64Milliseconds(info.deadline - now));
  std::vector<TaskId> arrived;
  for (const auto& [task, time] : info.arrived) {
    arrived.push_back(task);
    if (out.arrivals_size() == kMaxArrivals) continue;
    v1::Arrival& arrival = *out.add_arrivals();
    arrival.set_node_id(task.value());
    arrival.set_after_ms(absl::ToInt64Milliseconds(time - info.first_arrival));
  }
  out.set_arrived(Ranges(arrived));
  out.set_missing(Ranges(info.missing));
}

}  // namespace

void FillTaskInfo(const Coordinator& coordinator, const TaskInfo& info, v1::TaskInfo& out) {
  const TaskFacts& facts = coordinator.FactsOf(info.task);
  out.set_node_id(info.task.value());
  out.set_state(static_cast<v1::TaskState>(info.state));
  out.set_incarnation(info.incarnation.value());
  if (!info.status.ok()) {
    out.set_error_code(static_cast<int>(info.status.code()));
    out.set_error_message(std::string(info.status.message()));
  }
  out.set_observed_address(facts.observed_address);
  out.set_host_name(facts.host_name);
  out.set_boot_id(facts.boot_id);
  out.set_process_id(facts.process_id);
  out.set_service(facts.service);
  out.set_progress(coordinator.membership().task(info.task).progress);
  const auto [job, number] = coordinator.jobs().Locate(info.task);
  out.set_job_name(std::string(job));
  out.set_task_in_job(number);
}

void FillJobStatus(const Coordinator& coordinator, int64_t dropped_waits, absl::Time now,
                   v1::JobStatus& status) {
  for (const TaskInfo& info : coordinator.membership().Snapshot()) {
    v1::TaskInfo& task = *status.add_tasks();
    FillTaskInfo(coordinator, info, task);
    task.set_heartbeat_age_ms(Age(now, coordinator.membership().task(info.task).last_heartbeat));
  }
  for (const TaskId task : coordinator.JoiningTasks()) {
    status.mutable_tasks(task.value())->set_joining(true);
  }
  const std::vector<WaitInfo> waits = coordinator.Waits();
  for (const WaitInfo& wait : waits) {
    const bool is_known = coordinator.jobs().Contains(wait.task);
    v1::Wait& line = is_known ? *status.mutable_tasks(wait.task.value())->add_waits()
                              : *status.add_anonymous_waits();
    line.set_what(wait.what);
    line.set_age_ms(Age(now, wait.since));
  }
  for (const BarrierInfo& barrier : coordinator.barriers().OpenBarriers()) {
    FillBarrier(barrier, now, *status.add_barriers());
  }
  status.set_coordinator_incarnation(coordinator.incarnation().value());
  status.set_uptime_ms(Age(now, coordinator.started()));
  status.set_key_count(static_cast<int64_t>(coordinator.store().key_count()));
  status.set_stored_bytes(static_cast<int64_t>(coordinator.store().stored_bytes()));
  status.set_store_revision(coordinator.store().revision());
  status.set_dropped_waits(dropped_waits);
  // Only the listed ones: the coordinator's own watches are not a client's waits.
  status.set_parked_waits(static_cast<int64_t>(waits.size()));
  status.set_epoch(coordinator.epoch());
  if (!coordinator.job_error().ok()) {
    status.set_error_code(static_cast<int>(coordinator.job_error().code()));
    status.set_error_message(std::string(coordinator.job_error().message()));
  }
  status.set_topology_complete(coordinator.topology() != nullptr);
}

void FillElasticRuns(const std::vector<ElasticRunReport>& runs, v1::JobStatus& status) {
  size_t lines = 0;
  for (const ElasticRunReport& report : runs) {
    v1::ElasticRun& run = *status.add_elastic_runs();
    run.set_run_id(report.id.name);
    run.set_is_group(report.id.is_group);
    run.set_min_nodes(report.min_nodes);
    run.set_max_nodes(report.max_nodes);
    run.set_round(report.round);
    run.set_is_closed(report.is_closed);
    run.set_port(report.port);
    run.set_scope(report.scope);
    for (const ElasticAgentReport& agent : report.agents) {
      if (++lines > kMaxElasticAgents) break;
      v1::ElasticAgent& out = *run.add_agents();
      out.set_agent_id(agent.agent);
      out.set_host(agent.host);
      out.set_rank(agent.rank);
      out.set_is_waiting(agent.is_waiting);
      out.set_wanted_rank(agent.wanted_rank);
      out.set_age_ms(absl::ToInt64Milliseconds(agent.age));
      out.set_is_detached(agent.is_detached);
    }
  }
}

void FillStoreScopes(const std::vector<TcpStoreScopeReport>& scopes, const TcpStoreMemory& memory,
                     absl::Time now, v1::JobStatus& status) {
  status.set_store_client_bytes(static_cast<int64_t>(memory.client_bytes));
  status.set_max_store_client_bytes(static_cast<int64_t>(memory.max_client_bytes));
  size_t lines = 0;
  for (const TcpStoreScopeReport& report : scopes) {
    v1::StoreScope& scope = *status.add_store_scopes();
    scope.set_name(report.name);
    scope.set_port(report.port);
    scope.set_clients(static_cast<int64_t>(report.clients));
    scope.set_keys(report.keys);
    scope.set_bytes(static_cast<int64_t>(report.bytes));
    scope.set_wait_count(static_cast<int64_t>(report.wait_count));
    for (const TcpStoreWaitReport& entry : report.waits) {
      if (++lines > kMaxStoreLines) break;
      v1::StoreWait& wait = *scope.add_waits();
      wait.set_peer(entry.peer);
      for (const std::string& key : entry.wait.keys) {
        if (wait.keys_size() == kMaxKeysOfWait) break;
        wait.add_keys(key.substr(0, kMaxShownKeyBytes));
      }
      wait.set_key_count(static_cast<int64_t>(entry.wait.key_count));
      wait.set_world_size(entry.wait.world_size);
      wait.set_arrived(entry.wait.arrived);
      wait.set_age_ms(Age(now, entry.wait.since));
    }
    for (const MissingTcpStoreKey& entry : report.missing) {
      if (++lines > kMaxStoreLines) break;
      v1::MissingStoreKey& missing = *scope.add_missing();
      missing.set_key(entry.key.substr(0, kMaxShownKeyBytes));
      missing.set_ranks(FormatRanges(entry.ranks));
      missing.set_clients(static_cast<int64_t>(entry.clients));
      missing.set_age_ms(Age(now, entry.since));
      missing.set_world_size(entry.world_size);
      missing.set_arrived(entry.arrived);
    }
  }
}

void FillLighthouse(const LighthouseReport& report, v1::JobStatus& status) {
  if (report.is_unused) return;
  v1::LighthouseStatus& out = *status.mutable_lighthouse();
  out.set_quorum_id(report.quorum_id);
  out.set_quorum_size(static_cast<int64_t>(report.quorum_size));
  out.set_quorum_age_ms(absl::ToInt64Milliseconds(report.quorum_age));
  out.set_waits_for(report.waits_for);
  out.set_replica_count(static_cast<int64_t>(report.replica_count));
  for (const ReplicaReport& replica : report.replicas) {
    v1::ReplicaStatus& line = *out.add_replicas();
    line.set_replica_id(replica.id);
    line.set_address(replica.address.substr(0, kMaxShownKeyBytes));
    line.set_step(replica.step);
    line.set_in_quorum(replica.is_in_quorum);
    line.set_joined(replica.has_joined);
    line.set_joined_for_ms(absl::ToInt64Milliseconds(replica.joined_for));
    line.set_healthy(replica.is_healthy);
    line.set_heartbeat_age_ms(replica.heartbeat_age == absl::InfiniteDuration()
                                  ? -1
                                  : absl::ToInt64Milliseconds(replica.heartbeat_age));
  }
}

}  // namespace ferry::coord
