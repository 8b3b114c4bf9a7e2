// SPDX-License-Identifier: Apache-2.0
// ferry bench-floor (hidden): the server of raw gRPC calls, the coordinator's baseline.
#include <csignal>
#include <cstdio>

#include "base/file_limit.h"
#include "base/status_macros.h"
#include "bench/floor.h"
#include "bench/verbs.h"
#include "cli/signals.h"

namespace ferry::cli {

Verb AddBenchFloorVerb(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("bench-floor", "The server of raw calls of ferry bench");
  verb.group("");  // Hidden.
  return []() -> absl::StatusOr<int> {
    BlockedSignals signals({SIGINT, SIGTERM, SIGHUP});
    RaiseFileLimit();
    FERRY_ASSIGN_OR_RETURN(const auto server, UnaryFloorServer::Create());
    std::printf("bench-floor listening on %s\n", server->address().c_str());
    std::fflush(stdout);
    // Runs until its parent process ends it.
    signals.Wait();
    return kDone;
  };
}

}  // namespace ferry::cli
