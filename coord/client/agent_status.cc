// SPDX-License-Identifier: Apache-2.0
// Converts the status message.
#include "coord/client/agent_status.h"

#include <utility>

namespace ferry::coord {
namespace {

std::vector<WaitStatus> ReadWaits(const google::protobuf::RepeatedPtrField<v1::Wait>& waits) {
  std::vector<WaitStatus> out;
  for (const v1::Wait& wait : waits)
    out.push_back({wait.what(), absl::Milliseconds(wait.age_ms())});
  return out;
}

absl::Status ReadStatus(int code, const std::string& message) {
  return code == 0 ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(code), message);
}

StoreScopeStatus ReadStoreScope(const v1::StoreScope& scope) {
  StoreScopeStatus out{.name = scope.name(),
                       .port = scope.port(),
                       .clients = scope.clients(),
                       .keys = scope.keys(),
                       .bytes = scope.bytes(),
                       .wait_count = scope.wait_count()};
  for (const v1::StoreWait& wait : scope.waits()) {
    out.waits.push_back({.peer = wait.peer(),
                         .keys = {wait.keys().begin(), wait.keys().end()},
                         .key_count = wait.key_count(),
                         .world_size = wait.world_size(),
                         .arrived = wait.arrived(),
                         .age = absl::Milliseconds(wait.age_ms())});
  }
  for (const v1::MissingStoreKey& missing : scope.missing()) {
    out.missing.push_back({.key = missing.key(),
                           .ranks = missing.ranks(),
                           .clients = missing.clients(),
                           .world_size = missing.world_size(),
                           .arrived = missing.arrived(),
                           .age = absl::Milliseconds(missing.age_ms())});
  }
  return out;
}

LighthouseStatus ReadLighthouse(const v1::LighthouseStatus& message) {
  LighthouseStatus out{.quorum_id = message.quorum_id(),
                       .quorum_size = message.quorum_size(),
                       .quorum_age = absl::Milliseconds(message.quorum_age_ms()),
                       .waits_for = message.waits_for()};
  out.replica_count = message.replica_count();
  for (const v1::ReplicaStatus& replica : message.replicas()) {
    out.replicas.push_back({.id = replica.replica_id(),
                            .address = replica.address(),
                            .step = replica.step(),
                            .is_in_quorum = replica.in_quorum(),
                            .has_joined = replica.joined(),
                            .joined_for = absl::Milliseconds(replica.joined_for_ms()),
                            .is_healthy = replica.healthy(),
                            .heartbeat_age = replica.heartbeat_age_ms() < 0
                                                 ? absl::InfiniteDuration()
                                                 : absl::Milliseconds(replica.heartbeat_age_ms())});
  }
  return out;
}

ElasticRunStatus ReadElasticRun(const v1::ElasticRun& run) {
  ElasticRunStatus out{.run_id = run.run_id(),
                       .is_group = run.is_group(),
                       .min_nodes = run.min_nodes(),
                       .max_nodes = run.max_nodes(),
                       .round = run.round(),
                       .is_closed = run.is_closed(),
                       .port = run.port(),
                       .scope = run.scope()};
  for (const v1::ElasticAgent& agent : run.agents()) {
    out.agents.push_back({.agent_id = agent.agent_id(),
                          .host = agent.host(),
                          .rank = agent.rank(),
                          .is_waiting = agent.is_waiting(),
                          .wanted_rank = agent.wanted_rank(),
                          .age = absl::Milliseconds(agent.age_ms()),
                          .is_detached = agent.is_detached()});
  }
  return out;
}

}  // namespace

TaskStatus ReadTaskStatus(const v1::TaskInfo& task) {
  TaskStatus out;
  out.node_id = task.node_id();
  out.job_name = task.job_name();
  out.task_in_job = task.task_in_job();
  out.state = static_cast<TaskState>(task.state());
  out.is_joining = task.joining();
  out.incarnation = task.incarnation();
  out.error = ReadStatus(task.error_code(), task.error_message());
  out.heartbeat_age = task.heartbeat_age_ms() < 0 ? absl::InfiniteDuration()
                                                  : absl::Milliseconds(task.heartbeat_age_ms());
  out.facts.service = task.service();
  out.facts.observed_address = task.observed_address();
  out.facts.host_name = task.host_name();
  out.facts.boot_id = task.boot_id();
  out.facts.process_id = task.process_id();
  out.progress = task.progress();
  out.waits = ReadWaits(task.waits());
  return out;
}

JobStatus ReadJobStatus(const v1::JobStatus& message) {
  JobStatus out;
  for (const v1::TaskInfo& task : message.tasks()) out.tasks.push_back(ReadTaskStatus(task));
  for (const v1::BarrierStatus& barrier : message.barriers()) {
    BarrierStatus& read = out.barriers.emplace_back();
    read.id = barrier.id();
    read.counter = barrier.counter();
    read.total = barrier.total();
    read.arrived = barrier.arrived();
    read.missing = barrier.missing();
    read.age = absl::Milliseconds(barrier.age_ms());
    read.remaining = barrier.remaining_ms() < 0 ? absl::InfiniteDuration()
                                                : absl::Milliseconds(barrier.remaining_ms());
    for (const v1::Arrival& arrival : barrier.arrivals()) {
      read.arrivals.emplace_back(arrival.node_id(), absl::Milliseconds(arrival.after_ms()));
    }
  }
  out.anonymous_waits = ReadWaits(message.anonymous_waits());
  out.coordinator_incarnation = message.coordinator_incarnation();
  out.uptime = absl::Milliseconds(message.uptime_ms());
  out.key_count = message.key_count();
  out.stored_bytes = message.stored_bytes();
  out.store_revision = message.store_revision();
  out.parked_waits = message.parked_waits();
  out.dropped_waits = message.dropped_waits();
  out.epoch = message.epoch();
  out.error = ReadStatus(message.error_code(), message.error_message());
  out.topology_complete = message.topology_complete();
  out.store_client_bytes = message.store_client_bytes();
  out.max_store_client_bytes = message.max_store_client_bytes();
  for (const v1::StoreScope& scope : message.store_scopes()) {
    out.store_scopes.push_back(ReadStoreScope(scope));
  }
  if (message.has_lighthouse()) out.lighthouse = ReadLighthouse(message.lighthouse());
  for (const v1::ElasticRun& run : message.elastic_runs()) {
    out.elastic_runs.push_back(ReadElasticRun(run));
  }
  return out;
}

}  // namespace ferry::coord
