// SPDX-License-Identifier: Apache-2.0
// Detects nodes of a bench that have left, died or restarted. Pure.
#ifndef FERRY_BENCH_GONE_NODE_H_
#define FERRY_BENCH_GONE_NODE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "coord/core/job_status.h"

namespace ferry::cli {

// Checks that all participants are present, for a process that is waiting for them.
//   lives: incarnations of the participants by node id, as of the start.
//   tasks: nodes of the job; may include others and lack some.
//   stage: what this node was doing.
//   Errors: UNAVAILABLE naming the node, and what to do.
absl::Status CheckAllAlive(const std::map<int, uint64_t>& lives,
                           const std::vector<coord::TaskStatus>& tasks, absl::string_view stage);

// Describes the nodes of a job that are not present: "; node 3 has died: ..."; empty if all are.
std::string MissingNodes(const std::vector<coord::TaskStatus>& tasks);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_GONE_NODE_H_
