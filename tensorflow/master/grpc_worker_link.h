// SPDX-License-Identifier: Apache-2.0
// GrpcWorkerLinks: links to tensorflow.WorkerService over gRPC.
#ifndef FERRY_TENSORFLOW_MASTER_GRPC_WORKER_LINK_H_
#define FERRY_TENSORFLOW_MASTER_GRPC_WORKER_LINK_H_

#include <memory>
#include <string>

#include "absl/time/time.h"

#include "tensorflow/master/worker_link.h"

namespace ferry::master {

struct WorkerLinkOptions {
  // Keepalive pings while calls are pending: a step may take hours, and a worker that loses power
  // does not close its connections. gRPC uses the timeout as TCP_USER_TIMEOUT too, which also
  // closes the connection of a worker that is merely stopped while a feed is being sent to it. It
  // is therefore long; the coordinator detects a lost host sooner.
  absl::Duration keepalive_time = absl::Seconds(20);
  absl::Duration keepalive_timeout = absl::Seconds(60);
};

// Creates links and tracks their pending calls. Thread-safe. Callbacks run on gRPC's threads.
class GrpcWorkerLinks final {
 public:
  explicit GrpcWorkerLinks(WorkerLinkOptions options = {});
  // Calls Stop.
  ~GrpcWorkerLinks();

  GrpcWorkerLinks(const GrpcWorkerLinks&) = delete;
  GrpcWorkerLinks& operator=(const GrpcWorkerLinks&) = delete;

  // Connects on first use; calls fail at once with UNAVAILABLE if the worker is not listening.
  //   token: the job's secret; each call carries an authentication tag derived from it. Empty: no
  //   authentication.
  std::shared_ptr<WorkerLink> Connect(const std::string& address, const std::string& token = "");

  // Cancels all pending and future calls (CANCELLED), and blocks until the pending ones have ended.
  void Stop();

  class Calls;

 private:
  const WorkerLinkOptions options_;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_GRPC_WORKER_LINK_H_
