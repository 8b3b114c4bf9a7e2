// SPDX-License-Identifier: Apache-2.0
// Keeps gRPC's log off the tool's stderr.
#ifndef FERRY_CLI_QUIET_H_
#define FERRY_CLI_QUIET_H_

namespace ferry::cli {

// gRPC logs errors, such as a failed bind, that Ferry reports itself. If GRPC_VERBOSITY is set,
// both are printed. Call before gRPC is used. Not done by setting the environment variable, because
// the processes of `ferry run` would inherit it.
void SilenceGrpcLog();

}  // namespace ferry::cli

#endif  // FERRY_CLI_QUIET_H_
