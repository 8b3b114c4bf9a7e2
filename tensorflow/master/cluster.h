// SPDX-License-Identifier: Apache-2.0
// The workers of the job, as a master sees them.
#ifndef FERRY_TENSORFLOW_MASTER_CLUSTER_H_
#define FERRY_TENSORFLOW_MASTER_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/tf_device.pb.h"
#include "rendezvous/device_name.h"
#include "tensorflow/master/worker_link.h"

namespace ferry::master {

// A worker that can be asked to run graphs.
struct ClusterWorker {
  TaskName task;
  // "/job:worker/replica:0/task:1".
  std::string name;
  // Of this life of it; its devices have the same.
  uint64_t incarnation = 0;
  // The first is one of the host.
  std::vector<tensorflow::DeviceAttributes> devices;
  // Else its GPUs only move tensors, and are for nodes that ask for them.
  bool has_gpu_kernels = true;
  std::shared_ptr<WorkerLink> link;
};

// One that is expected.
struct MissingWorker {
  TaskName task;
  std::string name;
  // "has not joined"; for people.
  std::string why;
};

// A value: both in the order of tasks.
struct Cluster {
  std::vector<ClusterWorker> workers;
  std::vector<MissingWorker> missing;
};

// Where a master learns of them. Thread-safe.
class ClusterSource {
 public:
  virtual ~ClusterSource() = default;
  // As it is now. A worker keeps its link for as long as it lives.
  virtual Cluster Now() = 0;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_CLUSTER_H_
