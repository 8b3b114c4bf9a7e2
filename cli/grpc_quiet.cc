// SPDX-License-Identifier: Apache-2.0
// A log function that says next to nothing.
#include "cli/grpc_quiet.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <grpc/support/log.h>

namespace ferry::cli {

void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args* entry) {
    // The last words before gRPC aborts are not to be lost.
    if (std::strstr(entry->message, "assertion failed") == nullptr) return;
    std::fprintf(stderr, "ferry: gRPC: %s:%d: %s\n", entry->file, entry->line, entry->message);
  });
}

}  // namespace ferry::cli
