// SPDX-License-Identifier: Apache-2.0
// The proof of `ferry reset` that it knows the job's token.
#ifndef FERRY_CLI_END_JOB_PROOF_H_
#define FERRY_CLI_END_JOB_PROOF_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "coord/server/server.h"

namespace ferry::cli {

// Valid for this job only: `coordinator_incarnation` differs in the next one.
std::string EndJobProof(absl::string_view token, uint64_t coordinator_incarnation);

// Allows only clients that know the job's token to end it: the token of this process's environment,
// else the one that its nodes have put into the store. Any client can end a job without either.
void RequireEndJobProof(coord::ServerOptions& options);

}  // namespace ferry::cli

#endif  // FERRY_CLI_END_JOB_PROOF_H_
