// SPDX-License-Identifier: Apache-2.0
// JobWorkers: a job's workers, from the coordinator's own tables.
#ifndef FERRY_TENSORFLOW_MASTER_JOB_WORKERS_H_
#define FERRY_TENSORFLOW_MASTER_JOB_WORKERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "coord/core/coordinator_executor.h"
#include "tensorflow/master/cluster.h"
#include "topology/global_topology.h"

namespace ferry::master {

// The record a node publishes in the store.
struct WorkerRecord {
  uint64_t incarnation = 0;
  // HOST:PORT of its tensorflow.WorkerService; empty if it has none.
  std::string address;
  // Number of GPUs it can use: the first ones of its topology.
  int gpu_count = 0;
  // True if it has kernels for them.
  bool has_gpu_kernels = false;
};

// How to find and parse records; supplied by the caller.
struct WorkerRecords {
  // Prefix of all records' keys: "ferry/exchange/".
  std::string prefix;
  // Key of a node's record.
  std::function<std::string(int32_t node)> key;
  std::function<absl::StatusOr<WorkerRecord>(int32_t node, absl::string_view bytes)> read;
  // The job's secret, used to authenticate calls to workers. Empty: read it from the store under
  // `token_key`, if it is there.
  std::string token;
  std::string token_key;
};

// Thread-safe. A task counts as a worker if it is connected with the incarnation of its record, has
// an address, and has devices in the job's topology. Its name is /job:worker/replica:0/task:<node>.
class JobWorkers final : public ClusterSource {
 public:
  using Connect = std::function<std::shared_ptr<WorkerLink>(const std::string& address,
                                                            const std::string& token)>;

  // `strand` must outlive it.
  JobWorkers(coord::CoordinatorExecutor& strand, WorkerRecords records, Connect connect);
  ~JobWorkers() override;

  Cluster Now() override;

  // Calls `changed`, on any thread, whenever Now may return something else, until Stop has
  // returned. Call at most once.
  void Watch(std::function<void()> changed);
  void Stop();

 private:
  class Watcher;
  struct Facts;
  struct Known {
    uint64_t incarnation = 0;
    std::string address;
    std::string token;
    std::shared_ptr<WorkerLink> link;
    std::vector<tensorflow::DeviceAttributes> devices;
  };

  // Fills in the worker's link and devices. While a node rejoins, the job has no topology for a
  // moment; the last known devices of the other nodes are used. Returns false if its devices are
  // not known yet.
  bool Complete(ClusterWorker& worker, const WorkerRecord& record, const Facts& facts)
      ABSL_LOCKS_EXCLUDED(mu_);

  coord::CoordinatorExecutor& strand_;
  const WorkerRecords records_;
  const Connect connect_;
  std::shared_ptr<Watcher> watcher_;
  absl::Mutex mu_;
  std::map<int32_t, Known> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_JOB_WORKERS_H_
