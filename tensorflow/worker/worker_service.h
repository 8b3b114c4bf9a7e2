// SPDX-License-Identifier: Apache-2.0
// tensorflow.WorkerService over a Worker, but for the calls that move tensors between workers.
#ifndef FERRY_TENSORFLOW_WORKER_WORKER_SERVICE_H_
#define FERRY_TENSORFLOW_WORKER_WORKER_SERVICE_H_

#include <memory>

#include <grpcpp/impl/codegen/service_type.h>

#include "rendezvous/proof_policy.h"
#include "tensorflow/worker/worker.h"

namespace ferry::worker {

// GetStatus, CreateWorkerSession, DeleteWorkerSession, RegisterGraph, DeregisterGraph, RunGraph,
// CleanupGraph, CleanupAll, Logging, CompleteGroup, CompleteInstance and GetStepSequence; Tracing
// and RecvBuf are UNIMPLEMENTED. RecvTensor and MarkRecvFinished are
// rendezvous/recv_tensor/recv_tensor_service.h, of the same name and for the same port. `worker`
// outlives the server. A call that waits holds no thread; it ends when its client goes away or its
// deadline comes.
//   proof: whether calls must prove that they come from the job's master.
//   Errors: as Worker's; INVALID_ARGUMENT for a request that is none; UNAUTHENTICATED. In
//   RunGraph's body if the request says so, once it has been read.
std::unique_ptr<grpc::Service> MakeWorkerService(Worker& worker, ProofPolicy proof = {});

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_WORKER_SERVICE_H_
