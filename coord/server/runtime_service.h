// SPDX-License-Identifier: Apache-2.0
// xla.DistributedRuntimeService, protocol version 3: JAX's service before the coordination
// service.
#ifndef FERRY_COORD_SERVER_RUNTIME_SERVICE_H_
#define FERRY_COORD_SERVER_RUNTIME_SERVICE_H_

#include <memory>

#include "coord/server/unary_service.h"

namespace ferry::coord {

// `frontend` and `rare` outlive the service. Its nodes are the job's tasks, by number, and share
// barriers and the store with the other services; keys are not normalised.
std::unique_ptr<UnaryService> MakeRuntimeService(Frontend& frontend, GenericMethodTable& rare);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_RUNTIME_SERVICE_H_
