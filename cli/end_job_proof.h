// SPDX-License-Identifier: Apache-2.0
// The proof by which `ferry reset` shows that it knows the job's token.
#ifndef FERRY_CLI_END_JOB_PROOF_H_
#define FERRY_CLI_END_JOB_PROOF_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "coord/grpc_server.h"

namespace ferry::cli {

// Good for this job alone: `coordinator_incarnation` is another in the next.
std::string EndJobProof(absl::string_view token, uint64_t coordinator_incarnation);

// Lets those end the job that know its token: that of this process's environment, else the one that
// its nodes have left in the store. A job without either can be ended by everybody.
void RequireEndJobProof(coord::ServerOptions& options);

}  // namespace ferry::cli

#endif  // FERRY_CLI_END_JOB_PROOF_H_
