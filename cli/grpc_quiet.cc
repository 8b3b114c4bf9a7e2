// SPDX-License-Identifier: Apache-2.0
// A log function that says nothing.
#include "cli/grpc_quiet.h"

#include <cstdlib>

#include <grpc/support/log.h>

namespace ferry::cli {

void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace ferry::cli
