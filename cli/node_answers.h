// SPDX-License-Identifier: Apache-2.0
// Asking the nodes of a job something through the store.
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
  // Nodes that move tensors, are connected, and have not answered in time: they hang.
  std::vector<int> silent;
  // There are more nodes than were to be asked, and so nobody was.
  bool is_too_large = false;
};

// Sets `request_key`, and gathers what every node that moves tensors sets under `prefix` after
// that, for `timeout` at most.
absl::StatusOr<NodeAnswers> AskNodes(coord::Agent& agent, absl::string_view request_key,
                                     absl::string_view prefix, absl::Duration timeout,
                                     size_t max_nodes = std::numeric_limits<size_t>::max());

}  // namespace ferry::cli

#endif  // FERRY_CLI_NODE_ANSWERS_H_
