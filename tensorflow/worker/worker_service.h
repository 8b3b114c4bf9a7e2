// SPDX-License-Identifier: Apache-2.0
// tensorflow.WorkerService for a Worker, except for tensor transfers between workers.
#ifndef FERRY_TENSORFLOW_WORKER_WORKER_SERVICE_H_
#define FERRY_TENSORFLOW_WORKER_WORKER_SERVICE_H_

#include <memory>

#include <grpcpp/impl/codegen/service_type.h>

#include "rendezvous/auth_policy.h"
#include "tensorflow/worker/worker.h"

namespace ferry::worker {

// Serves GetStatus, CreateWorkerSession, DeleteWorkerSession, RegisterGraph, DeregisterGraph,
// RunGraph, CleanupGraph, CleanupAll, Logging, CompleteGroup, CompleteInstance and GetStepSequence;
// Tracing and RecvBuf are UNIMPLEMENTED. RecvTensor and MarkRecvFinished are in
// rendezvous/recv_tensor/recv_tensor_service.h, under the same service name and for the same port.
// `worker` must outlive the server. A waiting call holds no thread; it ends when its client
// disconnects or its deadline expires.
//   auth: whether calls must be authenticated with the job's token.
//   Errors: as Worker's; INVALID_ARGUMENT for a malformed request; UNAUTHENTICATED. In RunGraph's
//   body if the request asks for it, once it has been parsed.
std::unique_ptr<grpc::Service> MakeWorkerService(Worker& worker, AuthPolicy auth = {});

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_WORKER_SERVICE_H_
