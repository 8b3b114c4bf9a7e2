// SPDX-License-Identifier: Apache-2.0
// Which node of a bench is not there any more, and what has become of it. Pure.
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

// How a bench is over for who waits for one that does not come any more.
//   lives: of the nodes that take part, by id, as they were when they came.
//   tasks: of the job, those of others and not all of them too.
//   stage: what this node was doing.
//   Errors: UNAVAILABLE naming the node, and what to do.
absl::Status CheckAllAlive(const std::map<int, uint64_t>& lives,
                           const std::vector<coord::TaskStatus>& tasks, absl::string_view stage);

// Those of a job that are not there: "; node 3 has died: ..."; empty: all are.
std::string MissingNodes(const std::vector<coord::TaskStatus>& tasks);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_GONE_NODE_H_
