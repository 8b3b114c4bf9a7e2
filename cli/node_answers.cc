// SPDX-License-Identifier: Apache-2.0
// Writes a request, and watches for its answers.
#include "cli/node_answers.h"

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "node/endpoint_record.h"

namespace ferry::cli {
namespace {

// Returns the nodes that are connected and have published a tensor endpoint.
absl::StatusOr<std::set<int>> NodesToAsk(coord::Agent& agent) {
  FERRY_ASSIGN_OR_RETURN(const coord::JobStatus status, agent.Status());
  std::string prefix = EndpointKey(0);
  prefix.pop_back();
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> entries,
                         agent.List(prefix, /*keys_only=*/true));
  std::set<int> connected;
  for (const coord::TaskStatus& task : status.tasks) {
    if (task.state == coord::TaskState::kConnected) connected.insert(task.node_id);
  }
  std::set<int> nodes;
  for (const coord::KeyValue& entry : entries) {
    int node = 0;
    const absl::string_view digits = absl::StripPrefix(entry.key, prefix);
    if (absl::SimpleAtoi(digits, &node) && connected.contains(node)) nodes.insert(node);
  }
  return nodes;
}

// Answers, written on the agent's thread and read on the caller's.
struct Answers {
  absl::Mutex mu;
  int64_t asked ABSL_GUARDED_BY(mu) = INT64_MAX;
  // Per node, the latest answer and its revision.
  std::map<int, std::pair<int64_t, std::string>> latest ABSL_GUARDED_BY(mu);

  size_t count() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    size_t count = 0;
    for (const auto& [node, answer] : latest) count += answer.first > asked ? 1 : 0;
    return count;
  }
};

}  // namespace

absl::StatusOr<NodeAnswers> AskNodes(coord::Agent& agent, absl::string_view request_key,
                                     absl::string_view prefix, absl::Duration timeout,
                                     size_t max_nodes) {
  FERRY_ASSIGN_OR_RETURN(const std::set<int> nodes, NodesToAsk(agent));
  NodeAnswers result;
  result.is_too_large = nodes.size() > max_nodes;
  if (nodes.empty() || result.is_too_large) return result;
  // Shared, because the watch's callback may be running when the watch ends.
  const auto shared = std::make_shared<Answers>();
  Answers& answers = *shared;
  FERRY_ASSIGN_OR_RETURN(
      const auto watch,
      agent.Watch(prefix, [shared, prefix = std::string(prefix)](const coord::KeyChange& change) {
        int node = 0;
        const absl::string_view digits = absl::StripPrefix(change.entry.key, prefix);
        if (change.deleted || !absl::SimpleAtoi(digits, &node)) return;
        absl::MutexLock lock(&shared->mu);
        shared->latest[node] = {change.entry.revision, change.entry.value};
      }));
  // The value only needs to differ from the last one.
  FERRY_RETURN_IF_ERROR(agent.Set(request_key, absl::StrCat(absl::ToUnixNanos(absl::Now())),
                                  /*overwrite=*/true));
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> request, agent.List(request_key));
  if (request.empty()) return absl::InternalError("the coordinator keeps no request");
  absl::MutexLock lock(&answers.mu);
  answers.asked = request.front().revision;
  const auto have_all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answers.mu) {
    return answers.count() >= nodes.size();
  };
  answers.mu.AwaitWithTimeout(absl::Condition(&have_all), timeout);
  for (const int node : nodes) {
    const auto found = answers.latest.find(node);
    if (found == answers.latest.end() || found->second.first <= answers.asked) {
      result.silent.push_back(node);
      continue;
    }
    result.texts[node] = found->second.second;
  }
  return result;
}

}  // namespace ferry::cli
