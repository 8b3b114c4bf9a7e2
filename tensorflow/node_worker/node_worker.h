// SPDX-License-Identifier: Apache-2.0
// NodeWorker: a node's TensorFlow worker and its gRPC service.
#ifndef FERRY_TENSORFLOW_NODE_WORKER_NODE_WORKER_H_
#define FERRY_TENSORFLOW_NODE_WORKER_NODE_WORKER_H_

#include <memory>
#include <vector>

#include "node/node_service.h"
#include "node/transfer_engine.h"
#include "rendezvous/auth_policy.h"
#include "tensorflow/node_worker/transfer_steps.h"
#include "tensorflow/worker/worker.h"
#include "topology/device.h"

namespace ferry {

struct NodeWorkerOptions {
  // Maximum number of graph nodes (ops) that run concurrently; 0: the number of processors.
  int thread_count = 0;
  worker::WorkerLimits limits;
  // Masters must authenticate with the job's token.
  AuthPolicy auth;
  // Devices of this node, possibly among others; its GPUs are exported if the transfer engine uses
  // them.
  std::vector<Device> devices;
  // See TransferSteps.
  TransferSteps::Lookup lookup;
};

// Thread-safe. Created while a transfer engine starts, and outlives its server; `engine` outlives
// it.
class NodeWorker final : public NodeService {
 public:
  NodeWorker(TransferEngine& engine, NodeWorkerOptions options);
  ~NodeWorker() override;

  worker::Worker& worker() { return worker_; }
  grpc::Service& service() override { return *service_; }

 private:
  TransferSteps steps_;
  worker::Worker worker_;
  const std::unique_ptr<grpc::Service> service_;
};

// How a node runs TensorFlow's graphs.
struct GraphOptions {
  // Maximum number of graph nodes (ops) that run concurrently; 0: the number of processors.
  int thread_count = 0;
  // Limits on the requests of masters.
  worker::WorkerLimits limits;
};

// For NodeOptions::service: the node runs graphs, and serves tensorflow.WorkerService.
NodeServiceFactory ServeGraphs(GraphOptions options = {});

}  // namespace ferry

#endif  // FERRY_TENSORFLOW_NODE_WORKER_NODE_WORKER_H_
