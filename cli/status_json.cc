// SPDX-License-Identifier: Apache-2.0
// ferry status --json.
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "base/ranges.h"
#include "cli/status_text.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

Json Seconds(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return nullptr;
  return absl::ToDoubleSeconds(duration);
}

Json Error(const absl::Status& status) {
  if (status.ok()) return nullptr;
  return {{"code", absl::StatusCodeToString(status.code())},
          {"message", std::string(status.message())}};
}

Json Waits(const std::vector<coord::WaitStatus>& waits) {
  Json list = Json::array();
  for (const coord::WaitStatus& wait : waits) {
    list.push_back({{"what", wait.what}, {"age_s", Seconds(wait.age)}});
  }
  return list;
}

Json Task(const coord::TaskStatus& task) {
  return {{"node_id", task.node_id},
          {"job", task.job_name},
          {"task", task.task_in_job},
          {"state", StateWord(task)},
          // As text, because many JSON readers keep only 53 bits.
          {"incarnation", std::to_string(task.incarnation)},
          {"error", Error(task.error)},
          {"heartbeat_age_s", Seconds(task.heartbeat_age)},
          {"host", task.facts.host_name},
          {"boot_id", task.facts.boot_id},
          {"pid", task.facts.process_id},
          {"address", task.facts.observed_address},
          {"service", task.facts.service},
          {"progress", task.progress},
          {"waits", Waits(task.waits)}};
}

Json Barrier(const coord::BarrierStatus& barrier) {
  Json arrivals = Json::array();
  for (const auto& [node, after] : barrier.arrivals) {
    arrivals.push_back({{"node_id", node}, {"after_s", Seconds(after)}});
  }
  return {{"id", barrier.id},           {"counter", barrier.counter},
          {"total", barrier.total},     {"arrived", barrier.arrived},
          {"missing", barrier.missing}, {"age_s", Seconds(barrier.age)},
          {"arrivals", arrivals},       {"remaining_s", Seconds(barrier.remaining)}};
}

Json StoreScope(const coord::StoreScopeStatus& scope) {
  Json waits = Json::array();
  for (const coord::StoreWaitStatus& wait : scope.waits) {
    waits.push_back({{"peer", wait.peer},
                     {"keys", wait.keys},
                     {"key_count", wait.key_count},
                     {"world_size", wait.world_size},
                     {"arrived", wait.arrived},
                     {"age_s", Seconds(wait.age)}});
  }
  Json missing = Json::array();
  for (const coord::MissingStoreKeyStatus& key : scope.missing) {
    missing.push_back({{"key", key.key},
                       {"ranks", key.ranks},
                       {"clients", key.clients},
                       {"world_size", key.world_size},
                       {"arrived", key.arrived},
                       {"age_s", Seconds(key.age)}});
  }
  return {{"name", scope.name},        {"port", scope.port},
          {"clients", scope.clients},  {"keys", scope.keys},
          {"bytes", scope.bytes},      {"wait_count", scope.wait_count},
          {"waits", std::move(waits)}, {"missing", std::move(missing)}};
}

// Null if no client of torchft's has ever called.
Json Lighthouse(const std::optional<coord::LighthouseStatus>& lighthouse) {
  if (!lighthouse.has_value()) return nullptr;
  Json replicas = Json::array();
  for (const coord::ReplicaStatus& replica : lighthouse->replicas) {
    replicas.push_back({{"replica_id", replica.id},
                        {"address", replica.address},
                        {"step", replica.step},
                        {"in_quorum", replica.is_in_quorum},
                        {"joined", replica.has_joined},
                        {"joined_for_s", Seconds(replica.joined_for)},
                        {"healthy", replica.is_healthy},
                        {"heartbeat_age_s", Seconds(replica.heartbeat_age)}});
  }
  return {{"quorum_id", lighthouse->quorum_id},
          {"quorum_size", lighthouse->quorum_size},
          {"quorum_age_s", Seconds(lighthouse->quorum_age)},
          {"waits_for", lighthouse->waits_for},
          {"replica_count", lighthouse->replica_count},
          {"replicas", std::move(replicas)}};
}

Json ElasticRun(const coord::ElasticRunStatus& run) {
  Json agents = Json::array();
  for (const coord::ElasticAgentStatus& agent : run.agents) {
    Json line = {{"agent_id", agent.agent_id},
                 {"host", agent.host},
                 {"rank", agent.rank < 0 ? Json() : Json(agent.rank)},
                 {"is_waiting", agent.is_waiting},
                 {"age_s", agent.is_waiting ? Seconds(agent.age) : Json()},
                 {"is_detached", agent.is_detached}};
    if (run.is_group) line["wanted_rank"] = agent.wanted_rank;
    agents.push_back(std::move(line));
  }
  return {{"run_id", run.run_id},
          {"is_group", run.is_group},
          {"min_nodes", run.min_nodes},
          {"max_nodes", run.max_nodes},
          {"round", run.round < 0 ? Json() : Json(run.round)},
          {"is_closed", run.is_closed},
          {"port", run.port},
          {"scope", run.scope},
          {"agents", std::move(agents)}};
}

}  // namespace

std::string FormatStatusJson(const JobView& view, const std::string& coordinator) {
  const coord::JobStatus& status = view.status;
  Json tasks = Json::array();
  std::vector<int> missing;
  for (const coord::TaskStatus& task : status.tasks) {
    tasks.push_back(Task(task));
    if (std::string(StateWord(task)) == "missing") missing.push_back(task.node_id);
  }
  Json barriers = Json::array();
  for (const coord::BarrierStatus& barrier : status.barriers) barriers.push_back(Barrier(barrier));
  Json scopes = Json::array();
  for (const auto& scope : status.store_scopes) scopes.push_back(StoreScope(scope));
  Json runs = Json::array();
  for (const auto& run : status.elastic_runs) runs.push_back(ElasticRun(run));
  const Json object = {
      {"coordinator", coordinator},
      {"coordinator_incarnation", std::to_string(status.coordinator_incarnation)},
      {"uptime_s", Seconds(status.uptime)},
      {"epoch", status.epoch},
      {"error", Error(status.error)},
      {"missing", FormatRanges(missing)},
      {"topology_complete", status.topology_complete},
      {"store",
       {{"keys", status.key_count},
        {"bytes", status.stored_bytes},
        {"revision", status.store_revision}}},
      {"store_scopes", std::move(scopes)},
      {"store_clients",
       {{"bytes", status.store_client_bytes}, {"max_bytes", status.max_store_client_bytes}}},
      {"lighthouse", Lighthouse(status.lighthouse)},
      {"elastic_runs", std::move(runs)},
      {"parked_waits", status.parked_waits},
      {"dropped_waits", status.dropped_waits},
      {"anonymous_waits", Waits(status.anonymous_waits)},
      {"barriers", std::move(barriers)},
      {"tasks", std::move(tasks)},
      {"exchange", TransfersJson(view.transfers)}};
  // Keys and names may contain any bytes; JSON may not.
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ferry::cli
