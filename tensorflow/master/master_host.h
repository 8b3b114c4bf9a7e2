// SPDX-License-Identifier: Apache-2.0
// MasterHost: a master inside a coordinator, with its threads and worker links.
#ifndef FERRY_TENSORFLOW_MASTER_MASTER_HOST_H_
#define FERRY_TENSORFLOW_MASTER_MASTER_HOST_H_

#include <memory>
#include <vector>

#include <grpcpp/impl/codegen/service_type.h>

#include "absl/time/time.h"

#include "coord/core/coordinator_executor.h"
#include "coord/server/unary_service.h"
#include "tensorflow/master/grpc_worker_link.h"
#include "tensorflow/master/job_workers.h"
#include "tensorflow/master/master.h"
#include "tensorflow/master/timer_thread.h"
#include "tensorflow/master/work_pool.h"

namespace ferry::master {

// Must outlive the server that hosts it. Threads: "ferry-steps", "ferry-graph-N", "ferry-looks-0".
class MasterHost final {
 public:
  MasterHost(MasterOptions options, WorkerRecords records);
  // REQUIRES: Stop was called, if it was attached.
  ~MasterHost();

  MasterHost(const MasterHost&) = delete;
  MasterHost& operator=(const MasterHost&) = delete;

  // Returns the services for that coordinator's server. Call once.
  std::vector<std::unique_ptr<grpc::Service>> Attach(coord::CoordinatorExecutor& strand,
                                                     coord::GenericMethodTable& rare);

  size_t session_count() const { return master_ == nullptr ? 0 : master_->session_count(); }

  // Ends all sessions and completes all calls. Waits at most `grace` for workers to be notified.
  // Call before the coordinator's server stops. Idempotent.
  void Stop(absl::Duration grace);

 private:
  const MasterOptions options_;
  const WorkerRecords records_;
  Timers timers_;
  // Null before Attach.
  std::unique_ptr<TimerThread> timer_thread_;
  std::unique_ptr<WorkPool> pool_;
  std::unique_ptr<WorkPool> looks_;
  GrpcWorkerLinks links_;
  std::unique_ptr<JobWorkers> workers_;
  std::unique_ptr<Master> master_;
  bool is_stopped_ = false;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_MASTER_HOST_H_
