// SPDX-License-Identifier: Apache-2.0
// A master for a coordinator of this process.
#ifndef FERRY_CLI_HOSTED_MASTER_H_
#define FERRY_CLI_HOSTED_MASTER_H_

#include <memory>

#include "absl/time/time.h"

#include "coord/server/server.h"
#include "tensorflow/master/master_host.h"

namespace ferry::cli {

// How long workers are told that their sessions are over: for MasterHost::Stop.
inline constexpr absl::Duration kMasterGrace = absl::Milliseconds(400);
// The same for answers of the coordinator. Both together are less than the second within which a
// process ends after a signal, also where clients that were stopped do not take their answers.
inline constexpr absl::Duration kCoordinatorGrace = absl::Milliseconds(400);

// Makes a master whose services are those of the server that `options` are for; it outlives that
// server, and is stopped before it.
std::unique_ptr<master::MasterHost> AddMaster(master::MasterOptions master,
                                              coord::ServerOptions& options);

}  // namespace ferry::cli

#endif  // FERRY_CLI_HOSTED_MASTER_H_
