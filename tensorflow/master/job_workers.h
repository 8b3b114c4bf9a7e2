// SPDX-License-Identifier: Apache-2.0
// JobWorkers: the workers of a job, out of the coordinator's own tables.
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

// What a node says of itself in the store.
struct WorkerRecord {
  uint64_t incarnation = 0;
  // HOST:PORT of its tensorflow.WorkerService; empty: it has none.
  std::string address;
  // As many as it can use; the first ones of its topology.
  int gpu_count = 0;
  // Whether it has kernels for them.
  bool has_gpu_kernels = false;
};

// How records are found and read, which is others' knowledge.
struct WorkerRecords {
  // Of all of them: "ferry/exchange/".
  std::string prefix;
  // Of one node.
  std::function<std::string(int32_t node)> key;
  std::function<absl::StatusOr<WorkerRecord>(absl::string_view text)> read;
  // The job's token, of which calls to workers carry a proof; empty: what the store has under
  // `token_key`, if anything.
  std::string token;
  std::string token_key;
};

// Thread-safe. A worker is a task that is connected in the life of its record, has an address, and
// devices in the topology of the job; it is called /job:worker/replica:0/task:<node>.
class JobWorkers final : public ClusterSource {
 public:
  using Connect = std::function<std::shared_ptr<WorkerLink>(const std::string& address,
                                                            const std::string& token)>;

  // `strand` outlives it.
  JobWorkers(coord::CoordinatorExecutor& strand, WorkerRecords records, Connect connect);
  ~JobWorkers() override;

  Cluster Now() override;

  // Calls `changed`, on any thread, whenever Now may have another answer. Once. Not after Stop has
  // returned.
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

  // Fills in its link and devices. The topology of the job is what is known just now: when a node
  // comes again there is none for a moment, but those that stayed have the devices they had.
  // False: its devices have never been known.
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
