// SPDX-License-Identifier: Apache-2.0
// Flags, and what there is to say about a path.
#include "cli/send_recv.h"

#include "absl/strings/str_cat.h"

#include "cli/pattern.h"
#include "cli/verb.h"

namespace ferry::cli {

void AddSendRecvFlags(CLI::App& app, SendRecvFlags& flags) {
  app.add_option("name", flags.name, "what both sides call it")->type_name("NAME")->required();
  app.add_option("--step", flags.step, "the step's id: what is sent in it is received in it")
      ->type_name("ID")
      ->capture_default_str();
  AddDuration(app, "--timeout", flags.timeout,
              "how long to wait for the other side; if it is given, for it to join too, unless "
              "--connect-timeout is");
  app.add_option("--dtype", flags.dtype, "the elements' type")
      ->type_name("float|int8|bfloat16|...");
  app.add_option("--shape", flags.shape, "the extents, or scalar")->type_name("2x3");
  AddNodeFlags(app, flags.node);
  app.parse_complete_callback([&app, &flags] {
    if (app.count("--timeout") == 0) return;
    if (app.count("--connect-timeout") == 0) flags.node.connect_timeout = flags.timeout;
    if (app.count("--enumerate-timeout") == 0) flags.node.enumerate_timeout = flags.timeout;
  });
}

uint64_t PatternSeedOf(const SendRecvFlags& flags) {
  return PatternSeed(flags.name, static_cast<uint64_t>(flags.step));
}

std::string WhichWay(Node& node, int from, const Received& received) {
  if (received.path == "local") return "local: without leaving the process";
  if (received.path == "inline") return "inline: it is small enough to come with the answer";
  if (received.path == "grpc") return "by grpc, which carries everything here";
  if (received.is_dead) return absl::StrCat("by ", received.path);
  const absl::StatusOr<PathChoice> choice = node.PathFrom(from, received.tensor.bytes());
  if (!choice.ok()) return absl::StrCat("by ", received.path);
  return absl::StrCat("by ", received.path, ": ", Explain(*choice));
}

}  // namespace ferry::cli
