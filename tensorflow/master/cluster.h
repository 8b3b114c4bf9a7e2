// SPDX-License-Identifier: Apache-2.0
// Cluster: the master's view of the job's workers.
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

// A worker that can run graphs.
struct ClusterWorker {
  TaskName task;
  // "/job:worker/replica:0/task:1".
  std::string name;
  // Incarnation of its process; its devices carry the same.
  uint64_t incarnation = 0;
  // The first is a host device.
  std::vector<tensorflow::DeviceAttributes> devices;
  // If false, its GPUs only move tensors, and only nodes that request them are placed there.
  bool has_gpu_kernels = true;
  std::shared_ptr<WorkerLink> link;
};

// An expected worker that is not available.
struct MissingWorker {
  TaskName task;
  std::string name;
  // For messages: "has not joined".
  std::string why;
};

// A value: both lists are sorted by task.
struct Cluster {
  std::vector<ClusterWorker> workers;
  std::vector<MissingWorker> missing;
};

// Source of the cluster's state. Thread-safe.
class ClusterSource {
 public:
  virtual ~ClusterSource() = default;
  // Returns the current state. A worker keeps its link for as long as its incarnation lives.
  virtual Cluster Now() = 0;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_CLUSTER_H_
