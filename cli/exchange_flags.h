// SPDX-License-Identifier: Apache-2.0
// Flags of every verb that moves tensors: which way they may go, and the limits.
#ifndef FERRY_CLI_EXCHANGE_FLAGS_H_
#define FERRY_CLI_EXCHANGE_FLAGS_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "node/transfer_engine.h"

namespace ferry::cli {

// --require, --checksum, --carrier, the addresses, and one flag for each limit that an error names:
// the option RendezvousLimits::max_waiting is --max-waiting here. The job's token is no flag,
// because command lines can be read by everyone on a machine: FERRY_JOB_TOKEN or
// FERRY_JOB_TOKEN_FILE.
//   options: outlives `app`.
void AddExchangeFlags(CLI::App& app, TransferEngineOptions& options);

// Those flags for another process of this program, which then has these options.
std::vector<std::string> ExchangeArguments(const TransferEngineOptions& options);

}  // namespace ferry::cli

#endif  // FERRY_CLI_EXCHANGE_FLAGS_H_
