// SPDX-License-Identifier: Apache-2.0
// GrpcWorkerLinks: links to workers that serve tensorflow.WorkerService.
#ifndef FERRY_TENSORFLOW_MASTER_GRPC_WORKER_LINK_H_
#define FERRY_TENSORFLOW_MASTER_GRPC_WORKER_LINK_H_

#include <memory>
#include <string>

#include "absl/time/time.h"

#include "tensorflow/master/worker_link.h"

namespace ferry::master {

struct WorkerLinkOptions {
  // Connections are probed while calls are under way: a step may take hours, and a worker whose
  // machine has lost its power says nothing. The timeout is gRPC's TCP_USER_TIMEOUT as well, which
  // also ends the connection of a worker that is only stopped while a feed is being sent to it.
  // It is therefore long; the job's coordinator finds a lost host sooner.
  absl::Duration keepalive_time = absl::Seconds(20);
  absl::Duration keepalive_timeout = absl::Seconds(60);
};

// Makes links, and knows what they have under way. Thread-safe. Callbacks of links run on gRPC's
// threads.
class GrpcWorkerLinks final {
 public:
  explicit GrpcWorkerLinks(WorkerLinkOptions options = {});
  // As Stop.
  ~GrpcWorkerLinks();

  GrpcWorkerLinks(const GrpcWorkerLinks&) = delete;
  GrpcWorkerLinks& operator=(const GrpcWorkerLinks&) = delete;

  // Connects when it is first used; a worker that does not listen is UNAVAILABLE at once.
  //   token: the job's, of which every call carries a proof; empty: none does.
  std::shared_ptr<WorkerLink> Connect(const std::string& address, const std::string& token = "");

  // Calls end CANCELLED, those to come as well; waits for those that are under way.
  void Stop();

  class Calls;

 private:
  const WorkerLinkOptions options_;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_GRPC_WORKER_LINK_H_
