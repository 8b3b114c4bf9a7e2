// SPDX-License-Identifier: Apache-2.0
// Shared flags, and the description of a path.
#include "cli/send_recv.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/as_node.h"
#include "cli/fill.h"
#include "cli/pattern.h"
#include "cli/verb.h"
#include "node/endpoint_record.h"
#include "transport/transports.h"

namespace ferry::cli {

void AddPeerFlag(CLI::App& app, const std::string& flag, SendRecvFlags& flags,
                 const std::string& description) {
  AddNumber(app, flag, flags.peer, description, std::numeric_limits<int>::min(),
            std::numeric_limits<int>::max())
      ->type_name("NODE")
      ->default_str("")
      ->required();
}

void AddSendRecvFlags(CLI::App& app, SendRecvFlags& flags) {
  app.add_option("name", flags.name, "name of the tensor, the same on both sides")
      ->type_name("NAME")
      ->required();
  AddNumber(app, "--step", flags.step, "id of the step, the same on both sides")->type_name("ID");
  AddDuration(app, "--timeout", flags.timeout,
              "how long to wait for the other side; if given, also for it to join, unless "
              "--connect-timeout is given");
  app.add_option("--dtype", flags.dtype, "the elements' type")
      ->type_name("float|int8|bfloat16|...");
  app.add_option("--shape", flags.shape, "the extents, or scalar")->type_name("2x3");
  AddNodeFlags(app, flags.node);
  app.parse_complete_callback([&app, &flags] {
    if (app.count("--timeout") == 0) return;
    flags.node.answer_timeout = flags.timeout;
    if (app.count("--connect-timeout") == 0) flags.node.connect_timeout = flags.timeout;
    if (app.count("--enumerate-timeout") == 0) flags.node.enumerate_timeout = flags.timeout;
  });
}

absl::Status CheckSendRecvFlags(const SendRecvFlags& flags, absl::string_view peer_flag) {
  FERRY_RETURN_IF_ERROR(RendezvousKey::CheckEdge(flags.name));
  if (!flags.dtype.empty()) FERRY_RETURN_IF_ERROR(ParseDtypeFlag(flags.dtype).status());
  if (!flags.shape.empty()) FERRY_RETURN_IF_ERROR(ParseShapeFlag(flags.shape).status());
  FERRY_ASSIGN_OR_RETURN(const NodeIdentity node_identity, FindOwnIdentity(flags.node));
  if (flags.peer < 0 || (node_identity.num_nodes && flags.peer >= *node_identity.num_nodes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(peer_flag, "=", flags.peer, ": there is no such node",
                     node_identity.num_nodes
                         ? absl::StrCat("; the job has ", *node_identity.num_nodes, ", from 0")
                         : ""));
  }
  if (flags.peer == node_identity.node_id) {
    return absl::InvalidArgumentError(absl::StrCat(
        peer_flag, "=", flags.peer, " is this node itself; the other side is another process"));
  }
  const TransferEngineOptions& transfer = flags.node.transfer;
  if (!transfer.advertise.empty()) {
    FERRY_RETURN_IF_ERROR(CompleteAddress(transfer.advertise, /*port=*/1).status());
  }
  return FindToken(transfer, ProcessEnv).status();
}

absl::Status CheckBudget(const SendRecvFlags& flags, size_t bytes) {
  const size_t budget = flags.node.transfer.arena.budget_bytes;
  if (bytes <= budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(Quoted(flags.name), " has ", bytes, " bytes, and the arena may have ", budget,
                   " (--arena-budget-bytes, HostArenaOptions::budget_bytes)"));
}

absl::Status AsTransferFailure(const absl::Status& status) {
  return AsFailure(WithoutDerivedMark(status));
}

absl::Status PrefixNode(Node& node, const absl::Status& why) {
  return absl::AbortedError(absl::StrCat("node ", node.node_id(), ": ", why.message()));
}

uint64_t PatternSeedOf(const SendRecvFlags& flags) {
  return PatternSeed(flags.name, static_cast<uint64_t>(flags.step));
}

std::string DescribePath(Node& node, int from, const Received& received) {
  if (received.path == kLocalPath) return "local: without leaving the process";
  if (received.path == "eager") return "eager: it was sent before it was requested";
  if (received.path == "inline") return "inline: it is small enough to come with the answer";
  if (received.path == "grpc") return "by grpc, which carries everything here";
  if (received.is_dead) return absl::StrCat("by ", received.path);
  const absl::StatusOr<PathExplanation> choice = node.PathFrom(from, received.tensor.bytes());
  if (!choice.ok()) return absl::StrCat("by ", received.path);
  return absl::StrCat("by ", received.path, ": ", Explain(*choice));
}

}  // namespace ferry::cli
