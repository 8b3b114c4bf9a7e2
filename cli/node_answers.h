// SPDX-License-Identifier: Apache-2.0
// Queries a job's nodes through the store.
#ifndef FERRY_CLI_NODE_ANSWERS_H_
#define FERRY_CLI_NODE_ANSWERS_H_

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coord/client/agent.h"

namespace ferry::cli {

struct NodeAnswers {
  // By node.
  std::map<int, std::string> texts;
  // Nodes that transfer tensors, are connected, and have not answered in time: they hang.
  std::vector<int> silent;
  // True if there are more nodes than the limit, in which case none is queried.
  bool is_too_large = false;
};

// Sets `request_key`, and collects what each node that transfers tensors then sets under `prefix`,
// for at most `timeout`.
absl::StatusOr<NodeAnswers> AskNodes(coord::Agent& agent, absl::string_view request_key,
                                     absl::string_view prefix, absl::Duration timeout,
                                     size_t max_nodes = std::numeric_limits<size_t>::max());

}  // namespace ferry::cli

#endif  // FERRY_CLI_NODE_ANSWERS_H_
