// SPDX-License-Identifier: Apache-2.0
// What ferry send and ferry recv have in common.
#ifndef FERRY_CLI_SEND_RECV_H_
#define FERRY_CLI_SEND_RECV_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "cli/as_node.h"
#include "node/node.h"
#include "rendezvous/value.h"

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

// --to or --from, which has to be there; CheckSendRecvFlags knows which nodes there are.
void AddPeerFlag(CLI::App& app, const std::string& flag, SendRecvFlags& flags,
                 const std::string& description);

// NAME, --step, --timeout, --dtype, --shape, and those of AddNodeFlags.
void AddSendRecvFlags(CLI::App& app, SendRecvFlags& flags);

// Whether it can be done, as far as this process can tell before it joins: the name, the node on
// the other side, the type and the shape, and the job's token.
//   peer_flag: "--to".
//   Errors: INVALID_ARGUMENT naming the flag; those of ResolveNodeIdentity and FindToken.
absl::Status CheckSendRecvFlags(const SendRecvFlags& flags, absl::string_view peer_flag);

// Whether the arena has room for a tensor of `bytes`.
//   Errors: RESOURCE_EXHAUSTED naming the flag.
absl::Status CheckBudget(const SendRecvFlags& flags, size_t bytes);

// `status` as people read it: without TensorFlow's mark, and no matter of usage.
absl::Status AsExchangeFailure(const absl::Status& status);

// `why` as the other side reads it: "node 0: stopped by SIGTERM".
absl::Status AsOf(Node& node, const absl::Status& why);

// Of what NAME holds in that step when it is filled with the pattern.
uint64_t PatternSeedOf(const SendRecvFlags& flags);

// "by shm: shm (1us + 10.2 GB/s); not tcp: ...": the way that `received` took from node `from`, and
// why not another one.
std::string WhichWay(Node& node, int from, const Received& received);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SEND_RECV_H_
