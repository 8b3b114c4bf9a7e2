// SPDX-License-Identifier: Apache-2.0
// The tables of ferry status.
#include "cli/status_text.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "base/ranges.h"
#include "base/text.h"
#include "cli/status_elastic.h"
#include "cli/status_lighthouse.h"
#include "cli/status_scopes.h"
#include "cli/table.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

using coord::BarrierStatus;
using coord::JobStatus;
using coord::TaskStatus;
using coord::WaitStatus;

// A node may wait for thousands of keys; only these are shown.
constexpr size_t kMaxWaitsShown = 3;
// Length limit of ranges in a cell; the rest is only counted.
constexpr size_t kMaxRangeBytes = 60;

std::string OrDash(std::string text) { return text.empty() ? "-" : text; }

std::string Ago(absl::Duration age) {
  return age == absl::InfiniteDuration() ? "-" : absl::StrCat(ShortDuration(age), " ago");
}

// Strips the redundant parts of gRPC's "ipv4:10.0.0.7:50112".
std::string Address(absl::string_view observed) {
  absl::ConsumePrefix(&observed, "ipv4:");
  absl::ConsumePrefix(&observed, "ipv6:");
  return Printable(observed);
}

// Returns the informative waits: every healthy node also waits for job errors, and one that
// transfers tensors for node failures.
std::vector<WaitStatus> Telling(const std::vector<WaitStatus>& waits) {
  std::vector<WaitStatus> telling;
  for (const WaitStatus& wait : waits) {
    const bool is_usual =
        wait.what == "errors of the job" || wait.what == "a change of the task table";
    if (!is_usual) telling.push_back(wait);
  }
  return telling;
}

// The join barrier of the compatible services has an uninformative name.
std::string What(const WaitStatus& wait) {
  if (absl::StrContains(wait.what, "[Init]Wait_for_all_tasks_to_register")) {
    return "the others to join";
  }
  return Printable(wait.what);
}

std::string DescribeWaits(const std::vector<WaitStatus>& all_waits) {
  const std::vector<WaitStatus> waits = Telling(all_waits);
  std::vector<std::string> parts;
  for (const WaitStatus& wait : waits) {
    if (parts.size() == kMaxWaitsShown) break;
    parts.push_back(absl::StrCat(What(wait), " for ", ShortDuration(wait.age)));
  }
  if (waits.size() > kMaxWaitsShown) {
    parts.push_back(absl::StrCat(waits.size() - kMaxWaitsShown, " more"));
  }
  return absl::StrJoin(parts, ", ");
}

// The last column: the node's error, or its waits.
std::string Doing(const TaskStatus& task) {
  if (!task.error.ok()) return Printable(task.error.message());
  return OrDash(DescribeWaits(task.waits));
}

// Groups nodes in the same situation. Excludes ages, which differ slightly.
struct Situation {
  std::string job;
  std::string state;
  std::string service;
  std::string doing;

  friend auto operator<=>(const Situation&, const Situation&) = default;
};

Situation SituationOf(const TaskStatus& task) {
  Situation situation{task.job_name, StateWord(task), Printable(task.facts.service), ""};
  // Propagated errors are equal for all nodes; a node's own error names the node.
  if (!task.error.ok()) {
    situation.doing = Printable(task.error.message());
    return situation;
  }
  std::vector<std::string> waits;
  for (const WaitStatus& wait : Telling(task.waits)) {
    if (waits.size() == kMaxWaitsShown) break;
    waits.push_back(What(wait));
  }
  situation.doing = absl::StrJoin(waits, ", ");
  return situation;
}

std::string HeartbeatRange(const std::vector<const TaskStatus*>& tasks) {
  absl::Duration least = absl::InfiniteDuration();
  absl::Duration most = -absl::InfiniteDuration();
  for (const TaskStatus* task : tasks) {
    if (task->heartbeat_age == absl::InfiniteDuration()) continue;
    least = std::min(least, task->heartbeat_age);
    most = std::max(most, task->heartbeat_age);
  }
  if (most < absl::ZeroDuration()) return "-";
  const std::string low = ShortDuration(least);
  const std::string high = ShortDuration(most);
  return low == high ? absl::StrCat(low, " ago") : absl::StrCat(low, " to ", high, " ago");
}

std::string Since(const std::vector<const TaskStatus*>& tasks) {
  absl::Duration longest = absl::ZeroDuration();
  for (const TaskStatus* task : tasks) {
    for (const WaitStatus& wait : Telling(task->waits)) longest = std::max(longest, wait.age);
  }
  return longest == absl::ZeroDuration() ? "" : absl::StrCat(" for up to ", ShortDuration(longest));
}

std::string TableOfNodes(const JobStatus& status) {
  const bool has_progress = std::any_of(status.tasks.begin(), status.tasks.end(),
                                        [](const TaskStatus& task) { return task.progress > 0; });
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "STATE", "HEARTBEAT", "HOST", "PID", "ADDRESS", "SERVICE"}};
  if (has_progress) rows[0].push_back("PROGRESS");
  rows[0].push_back("WAITS FOR");
  for (const TaskStatus& task : status.tasks) {
    const std::string pid = task.facts.process_id == 0 ? "-" : absl::StrCat(task.facts.process_id);
    std::vector<std::string> row = {absl::StrCat(task.node_id),
                                    StateWord(task),
                                    Ago(task.heartbeat_age),
                                    OrDash(Printable(task.facts.host_name)),
                                    pid,
                                    OrDash(Address(task.facts.observed_address)),
                                    OrDash(Printable(task.facts.service))};
    if (has_progress) row.push_back(absl::StrCat(task.progress));
    row.push_back(Doing(task));
    rows.push_back(std::move(row));
  }
  return FormatTable(rows, "  ");
}

std::string TableOfSituations(const JobStatus& status) {
  std::map<Situation, std::vector<const TaskStatus*>> groups;
  for (const TaskStatus& task : status.tasks) groups[SituationOf(task)].push_back(&task);
  // Sorted by first node.
  std::vector<std::pair<const Situation*, const std::vector<const TaskStatus*>*>> ordered;
  for (const auto& [situation, tasks] : groups) ordered.emplace_back(&situation, &tasks);
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second->front()->node_id < b.second->front()->node_id;
  });
  std::vector<std::vector<std::string>> rows = {
      {"NODES", "COUNT", "STATE", "HEARTBEAT", "HOSTS", "SERVICE", "WAITS FOR"}};
  for (const auto& [situation, tasks] : ordered) {
    std::vector<int> nodes;
    std::set<std::string> hosts;
    for (const TaskStatus* task : *tasks) {
      nodes.push_back(task->node_id);
      if (!task->facts.host_name.empty()) hosts.insert(task->facts.host_name);
    }
    rows.push_back(
        {FormatRanges(nodes, kMaxRangeBytes), absl::StrCat(nodes.size()), situation->state,
         HeartbeatRange(*tasks),
         hosts.empty()       ? "-"
         : hosts.size() == 1 ? Printable(*hosts.begin())
                             : absl::StrCat(hosts.size(), " hosts"),
         OrDash(situation->service),
         situation->doing.empty() ? "-" : absl::StrCat(situation->doing, Since(*tasks))});
  }
  return FormatTable(rows, "  ");
}

// Returns "4 nodes: 3 joined; missing: node 3".
std::string Overview(const JobStatus& status) {
  std::map<std::string, std::vector<int>> by_state;
  for (const TaskStatus& task : status.tasks) by_state[StateWord(task)].push_back(task.node_id);
  const size_t joined = by_state["joined"].size();
  std::string text = absl::StrCat(Count(status.tasks.size(), "node"), ": ",
                                  joined == 0 ? "none" : absl::StrCat(joined), " joined");
  for (const char* state : {"joining", "missing", "left", "failed"}) {
    const std::vector<int>& nodes = by_state[state];
    if (nodes.empty()) continue;
    absl::StrAppend(&text, "; ", state, nodes.size() == 1 ? ": node " : ": nodes ",
                    FormatRanges(nodes, kMaxRangeBytes));
    if (nodes.size() > 2) absl::StrAppend(&text, " (", nodes.size(), ")");
  }
  return text;
}

std::string TableOfBarriers(const JobStatus& status) {
  std::vector<std::vector<std::string>> rows = {
      {"BARRIER", "ARRIVED", "MISSING", "OPEN FOR", "TIME LEFT"}};
  for (const BarrierStatus& barrier : status.barriers) {
    const int counted = barrier.total;
    rows.push_back({absl::StrCat(Quoted(barrier.id, 60),
                                 barrier.counter > 0 ? absl::StrCat(" use ", barrier.counter) : ""),
                    absl::StrCat(OrDash(Printable(barrier.arrived)), " of ", counted),
                    OrDash(Printable(barrier.missing)), ShortDuration(barrier.age),
                    ShortDuration(barrier.remaining)});
  }
  return FormatTable(rows, "  ");
}

}  // namespace

const char* StateWord(const TaskStatus& task) {
  if (task.is_joining) return "joining";
  switch (task.state) {
    case coord::TaskState::kConnected:
      return "joined";
    case coord::TaskState::kError:
      return "failed";
    case coord::TaskState::kDisconnected:
      break;
  }
  return task.incarnation != 0 ? "left" : "missing";
}

std::string FormatStatusText(const JobView& view, const std::string& coordinator,
                             size_t max_lines) {
  const JobStatus& status = view.status;
  std::string text = absl::StrCat(Overview(status), "\n");
  if (!status.error.ok()) {
    absl::StrAppend(&text, "the job has failed: ", Printable(status.error.message()), "\n");
  }
  absl::StrAppend(
      &text, "\n",
      status.tasks.size() <= max_lines ? TableOfNodes(status) : TableOfSituations(status));
  if (!status.barriers.empty()) absl::StrAppend(&text, "\n", TableOfBarriers(status));
  if (!status.anonymous_waits.empty()) {
    absl::StrAppend(&text, "\n  others wait for: ", DescribeWaits(status.anonymous_waits), "\n");
  }
  text += FormatElasticText(status.elastic_runs, max_lines);
  text += FormatScopesText(status, max_lines);
  text += FormatLighthouseText(status.lighthouse, max_lines);
  text += FormatTransfersText(view.transfers, max_lines);
  absl::StrAppend(&text, "\n  store        ", Count(status.key_count, "key"), ", ",
                  ShortBytes(static_cast<double>(status.stored_bytes)), "; ",
                  Count(status.parked_waits, "parked wait"), ", ", status.dropped_waits,
                  " dropped with their clients\n");
  absl::StrAppend(&text, "  topology     ",
                  status.topology_complete ? "agreed; see ferry topo --coordinator"
                                           : "not every node has told its devices",
                  "\n");
  absl::StrAppend(
      &text, "  coordinator  ", Printable(coordinator), ", up ", ShortDuration(status.uptime),
      status.epoch > 1 ? absl::StrCat(", job ", status.epoch, " since its start") : "", "\n");
  return text;
}

}  // namespace ferry::cli
