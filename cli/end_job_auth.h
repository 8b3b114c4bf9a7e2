// SPDX-License-Identifier: Apache-2.0
// Authenticates `ferry reset` with the job's token.
#ifndef FERRY_CLI_END_JOB_AUTH_H_
#define FERRY_CLI_END_JOB_AUTH_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

#include "coord/server/server.h"

namespace ferry::cli {

// Valid for this job only, because the next one has another `coordinator_incarnation`.
std::string EndJobAuthTag(absl::string_view token, uint64_t coordinator_incarnation);

// Lets only clients that know the job's token end it: the token of this process's environment, else
// the one that its nodes put into the store. If there is neither, any client can end the job.
void RequireEndJobAuth(coord::ServerOptions& options);

}  // namespace ferry::cli

#endif  // FERRY_CLI_END_JOB_AUTH_H_
