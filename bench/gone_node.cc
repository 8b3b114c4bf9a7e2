// SPDX-License-Identifier: Apache-2.0
// Texts for each way to leave a job.
#include "bench/gone_node.h"

#include "absl/strings/str_cat.h"

#include "node/node_failure.h"

namespace ferry::cli {
namespace {

// Returns an empty text if the node is present with that incarnation.
absl::string_view WhatBecameOf(const coord::TaskStatus& task, uint64_t life) {
  if (task.state == coord::TaskState::kError) return FailedOrDied(task.error);
  if (task.state == coord::TaskState::kDisconnected) return "has left the job";
  return task.incarnation == life ? "" : "was restarted";
}

std::string WhyOf(const coord::TaskStatus& task) {
  if (task.state != coord::TaskState::kError) return "";
  return absl::StrCat(": ", task.error.message());
}

}  // namespace

absl::Status CheckAllAlive(const std::map<int, uint64_t>& lives,
                           const std::vector<coord::TaskStatus>& tasks, absl::string_view stage) {
  for (const coord::TaskStatus& task : tasks) {
    const auto life = lives.find(task.node_id);
    if (life == lives.end()) continue;
    const absl::string_view what = WhatBecameOf(task, life->second);
    if (what.empty()) continue;
    return absl::UnavailableError(
        absl::StrCat("node ", task.node_id, " ", what, " while this one was ", stage, WhyOf(task),
                     "; start the bench again on all of its nodes once that one is back"));
  }
  return absl::OkStatus();
}

std::string MissingNodes(const std::vector<coord::TaskStatus>& tasks) {
  std::string away;
  for (const coord::TaskStatus& task : tasks) {
    const absl::string_view what = WhatBecameOf(task, task.incarnation);
    if (!what.empty()) absl::StrAppend(&away, "; node ", task.node_id, " ", what, WhyOf(task));
  }
  return away;
}

}  // namespace ferry::cli
