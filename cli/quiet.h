// SPDX-License-Identifier: Apache-2.0
// Keeps gRPC's own log off the tool's stderr.
#ifndef FERRY_CLI_QUIET_H_
#define FERRY_CLI_QUIET_H_

namespace ferry::cli {

// gRPC logs a failed bind, say, in its own words before we report it in ours. Whoever sets
// GRPC_VERBOSITY gets both. Call it before gRPC is used. A function and not the environment
// variable, which the processes of `ferry run` would inherit.
void SilenceGrpcLog();

}  // namespace ferry::cli

#endif  // FERRY_CLI_QUIET_H_
