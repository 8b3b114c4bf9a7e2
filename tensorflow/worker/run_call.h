// SPDX-License-Identifier: Apache-2.0
// Serves one RunGraph call.
#ifndef FERRY_TENSORFLOW_WORKER_RUN_CALL_H_
#define FERRY_TENSORFLOW_WORKER_RUN_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "tensorflow/worker/worker.h"

namespace ferry::worker {

// `response` must stay valid until the call is over. gRPC owns the returned reactor.
grpc::ServerUnaryReactor* StartRunCall(Worker& worker, const grpc::ByteBuffer& request,
                                       grpc::ByteBuffer* response);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_RUN_CALL_H_
