// SPDX-License-Identifier: Apache-2.0
// GrpcWorkerLinks: links to workers that serve tensorflow.WorkerService.
#ifndef FERRY_MASTER_GRPC_WORKER_LINK_H_
#define FERRY_MASTER_GRPC_WORKER_LINK_H_

#include <memory>
#include <string>

#include "master/worker_link.h"

namespace ferry::master {

// Makes links, and knows what they have under way. Thread-safe. Callbacks of links run on gRPC's
// threads.
class GrpcWorkerLinks final {
 public:
  GrpcWorkerLinks();
  // As Stop.
  ~GrpcWorkerLinks();

  GrpcWorkerLinks(const GrpcWorkerLinks&) = delete;
  GrpcWorkerLinks& operator=(const GrpcWorkerLinks&) = delete;

  // Connects when it is first used; a worker that does not listen is UNAVAILABLE at once.
  std::shared_ptr<WorkerLink> Connect(const std::string& address);

  // Calls end CANCELLED, those to come as well; waits for those that are under way.
  void Stop();

  class Calls;

 private:
  const std::shared_ptr<Calls> calls_;
};

}  // namespace ferry::master

#endif  // FERRY_MASTER_GRPC_WORKER_LINK_H_
