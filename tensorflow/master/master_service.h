// SPDX-License-Identifier: Apache-2.0
// tensorflow.MasterService, and tensorflow.grpc.MasterService.
#ifndef FERRY_TENSORFLOW_MASTER_MASTER_SERVICE_H_
#define FERRY_TENSORFLOW_MASTER_MASTER_SERVICE_H_

#include <memory>
#include <vector>

#include <grpcpp/impl/codegen/service_type.h>

#include "coord/server/unary_service.h"
#include "tensorflow/master/master.h"

namespace ferry::master {

// One service for each name. `master` and `rare` outlive them; what gRPC calls often is in their
// own tables, and the rest in `rare`. Large messages are read and written by Master::work, for
// gRPC's threads are few. `guard` goes with them.
std::vector<std::unique_ptr<grpc::Service>> MakeMasterServices(Master& master,
                                                               coord::GenericMethodTable& rare,
                                                               std::shared_ptr<const void> guard);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_MASTER_SERVICE_H_
