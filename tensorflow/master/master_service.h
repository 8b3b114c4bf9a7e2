// SPDX-License-Identifier: Apache-2.0
// gRPC services tensorflow.MasterService and tensorflow.grpc.MasterService.
#ifndef FERRY_TENSORFLOW_MASTER_MASTER_SERVICE_H_
#define FERRY_TENSORFLOW_MASTER_MASTER_SERVICE_H_

#include <memory>
#include <vector>

#include <grpcpp/impl/codegen/service_type.h>

#include "coord/server/unary_service.h"
#include "tensorflow/master/master.h"

namespace ferry::master {

// Returns one service per name. `master` and `rare` must outlive them. Frequent methods are
// registered with gRPC, the others added to `rare`. Large messages are parsed and serialised by
// Master::work, because gRPC has few threads. The services hold `guard`.
std::vector<std::unique_ptr<grpc::Service>> MakeMasterServices(Master& master,
                                                               coord::GenericMethodTable& rare,
                                                               std::shared_ptr<const void> guard);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_MASTER_SERVICE_H_
