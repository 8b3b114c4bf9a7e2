// SPDX-License-Identifier: Apache-2.0
// What ferry send and ferry recv have in common.
#ifndef FERRY_CLI_SEND_RECV_H_
#define FERRY_CLI_SEND_RECV_H_

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "cli/as_node.h"
#include "rendezvous/value.h"
#include "runtime/node.h"

namespace ferry::cli {

struct SendRecvFlags {
  // Of the value.
  std::string name;
  // The node on the other side.
  int peer = 0;
  int64_t step = 1;
  absl::Duration timeout = absl::Minutes(1);
  std::string dtype;
  std::string shape;
  NodeOptions node;
};

// NAME, --step, --timeout, --dtype, --shape, and those of AddNodeFlags.
void AddSendRecvFlags(CLI::App& app, SendRecvFlags& flags);

// Of what NAME holds in that step when it is filled with the pattern.
uint64_t PatternSeedOf(const SendRecvFlags& flags);

// "by shm: shm (1us + 10.2 GB/s); not tcp: ...": the way that `received` took from node `from`, and
// why not another one.
std::string WhichWay(Node& node, int from, const Received& received);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SEND_RECV_H_
