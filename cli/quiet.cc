// SPDX-License-Identifier: Apache-2.0
// A gRPC log function that drops most messages.
#include "cli/quiet.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <grpc/support/log.h>

#include "absl/status/status.h"

#include "base/thread_room.h"
#include "cli/verb.h"

namespace ferry::cli {

void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args* entry) {
    // Keep the message that precedes an abort.
    if (std::strstr(entry->message, "assertion failed") == nullptr) return;
    // gRPC aborts if it cannot create a thread.
    if (const absl::Status room = CheckThreadRoom(1);
        !room.ok() || std::strstr(entry->message, "created()") != nullptr) {
      std::fprintf(stderr, "ferry: gRPC cannot start a thread: %s\n", ThreadLimits().c_str());
      _exit(kFailed);
    }
    std::fprintf(stderr, "ferry: gRPC: %s:%d: %s\n", entry->file, entry->line, entry->message);
  });
}

}  // namespace ferry::cli
