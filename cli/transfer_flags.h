// SPDX-License-Identifier: Apache-2.0
// Flags of all verbs that transfer tensors: allowed transports, and limits.
#ifndef FERRY_CLI_TRANSFER_FLAGS_H_
#define FERRY_CLI_TRANSFER_FLAGS_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "node/transfer_engine.h"

namespace ferry::cli {

// Adds --transport, --checksum, --protocol, the addresses, and one flag for each limit that an
// error names: option RendezvousLimits::max_pending_ops is --max-pending-ops. The job's token has
// no flag, because every user of a machine can read command lines: use FERRY_JOB_TOKEN or
// FERRY_JOB_TOKEN_FILE.
//   options: must outlive `app`.
void AddTransferFlags(CLI::App& app, TransferEngineOptions& options);

// Returns the flags that give another ferry process these options.
std::vector<std::string> TransferArguments(const TransferEngineOptions& options);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TRANSFER_FLAGS_H_
