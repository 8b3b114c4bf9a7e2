// SPDX-License-Identifier: Apache-2.0
// Launch: the command's file and environment, and the object that supervises its processes.
#include "launch/launcher.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "launch/child_process.h"
#include "launch/master_address.h"
#include "launch/rank_supervisor.h"
#include "launch/signal_relay.h"

namespace ferry {
namespace {

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

}  // namespace

absl::StatusOr<int> Launch(const LaunchOptions& given, std::FILE* out, std::FILE* err) {
  FERRY_RETURN_IF_ERROR(CheckLaunchOptions(given));
  LaunchOptions options = given;
  if (options.machine_count == 1 && options.master.empty()) {
    FERRY_ASSIGN_OR_RETURN(const int port, FreePort());
    options.master = JoinHostPort("127.0.0.1", port);
  }
  const std::vector<std::string> inherited = InheritedEnvironment();
  const char* path = std::getenv("PATH");
  FERRY_ASSIGN_OR_RETURN(const std::string file,
                         FindProgram(options.command[0], path != nullptr ? path : "/usr/bin:/bin"));
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<SignalRelay> relay, SignalRelay::Create());
  RankSupervisor ranks(options, out, err, *relay);
  FERRY_RETURN_IF_ERROR(ranks.Start(file, inherited));
  return ranks.Run();
}

}  // namespace ferry
