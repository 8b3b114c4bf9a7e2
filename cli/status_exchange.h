// SPDX-License-Identifier: Apache-2.0
// ferry status: what nodes say of their part in moving tensors.
#ifndef FERRY_CLI_STATUS_EXCHANGE_H_
#define FERRY_CLI_STATUS_EXCHANGE_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/time/time.h"

#include "coord/client/agent.h"
#include "node/transfer_report.h"

namespace ferry::cli {

// In larger jobs nobody is asked unless everyone is wanted.
inline constexpr size_t kMaxAskedNodes = 128;

struct TransferAnswers {
  // By node.
  std::map<int, TransferReport> reports;
  // Nodes that move tensors, are connected, and have not answered in time, or not sensibly.
  std::vector<int> silent;
  // There are more nodes than were to be asked.
  bool is_too_large = false;
  // Why there are no answers at all; empty: there are.
  std::string error;
};

TransferAnswers AskExchange(coord::Agent& agent, absl::Duration timeout, size_t max_nodes);

// A line for each node, the paths that they have, and the reasons of those that they have not.
// Empty if no node moves tensors.
//   max_lines: of each table.
std::string FormatExchangeText(const TransferAnswers& answers, size_t max_lines);
nlohmann::ordered_json ExchangeJson(const TransferAnswers& answers);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_EXCHANGE_H_
