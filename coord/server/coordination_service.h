// SPDX-License-Identifier: Apache-2.0
// tensorflow.CoordinationService and xla.coordination.CoordinationService, served side by side.
#ifndef FERRY_COORD_SERVER_COORDINATION_SERVICE_H_
#define FERRY_COORD_SERVER_COORDINATION_SERVICE_H_

#include <memory>

#include "coord/server/unary_service.h"
#include "coord/wire/device_info_proto.h"

namespace ferry::coord {

enum class CoordinationPath { kTensorflow, kXla };

// A gRPC service for one of the two names. `frontend`, `devices` and `rare` outlive it. Requests
// are received as bytes, because there are several generations of messages under one name.
std::unique_ptr<UnaryService> MakeCoordinationService(CoordinationPath path, Frontend& frontend,
                                                      DeviceInfoMerger& devices,
                                                      GenericMethodTable& rare);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_COORDINATION_SERVICE_H_
