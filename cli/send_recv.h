// SPDX-License-Identifier: Apache-2.0
// Parts shared by ferry send and ferry recv.
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
  // Name of the tensor.
  std::string name;
  // The other node.
  int peer = 0;
  int64_t step = 1;
  absl::Duration timeout = absl::Minutes(1);
  std::string dtype;
  std::string shape;
  NodeOptions node;
};

// Adds --to or --from, which is required; CheckSendRecvFlags checks its range.
void AddPeerFlag(CLI::App& app, const std::string& flag, SendRecvFlags& flags,
                 const std::string& description);

// Adds NAME, --step, --timeout, --dtype, --shape, and those of AddNodeFlags.
void AddSendRecvFlags(CLI::App& app, SendRecvFlags& flags);

// Validates, as far as possible before joining: the name, the other node, the type and shape, and
// the job's token.
//   peer_flag: "--to".
//   Errors: INVALID_ARGUMENT naming the flag; those of ResolveNodeIdentity and FindToken.
absl::Status CheckSendRecvFlags(const SendRecvFlags& flags, absl::string_view peer_flag);

// Checks that the arena has room for a tensor of `bytes`.
//   Errors: RESOURCE_EXHAUSTED naming the flag.
absl::Status CheckBudget(const SendRecvFlags& flags, size_t bytes);

// Converts `status` for users: without TensorFlow's mark, and never a usage error.
absl::Status AsTransferFailure(const absl::Status& status);

// Prefixes `why` for the other side: "node 0: stopped by SIGTERM".
absl::Status PrefixNode(Node& node, const absl::Status& why);

// Returns the seed for NAME in that step when it is filled with the pattern.
uint64_t PatternSeedOf(const SendRecvFlags& flags);

// Returns "by shm: shm (1us + 10.2 GB/s); not tcp: ...": the path that `received` took from node
// `from`, and why not another one.
std::string DescribePath(Node& node, int from, const Received& received);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SEND_RECV_H_
