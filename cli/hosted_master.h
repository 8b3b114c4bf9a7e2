// SPDX-License-Identifier: Apache-2.0
// Adds a master to a coordinator in this process.
#ifndef FERRY_CLI_HOSTED_MASTER_H_
#define FERRY_CLI_HOSTED_MASTER_H_

#include <memory>

#include "absl/time/time.h"

#include "coord/server/server.h"
#include "tensorflow/master/master_host.h"

namespace ferry::cli {

// How long to wait for workers to acknowledge that their sessions have ended; for MasterHost::Stop.
inline constexpr absl::Duration kMasterGrace = absl::Milliseconds(400);
// The same for the coordinator's responses. Together below the second within which a process ends
// after a signal, even if suspended clients do not read their responses.
inline constexpr absl::Duration kCoordinatorGrace = absl::Milliseconds(400);

// Creates a master and adds its services to `options`. It must outlive the server made from them,
// and be stopped before it.
std::unique_ptr<master::MasterHost> AddMaster(master::MasterOptions master,
                                              coord::ServerOptions& options);

}  // namespace ferry::cli

#endif  // FERRY_CLI_HOSTED_MASTER_H_
