// SPDX-License-Identifier: Apache-2.0
// A node's worker: what it runs of TensorFlow's graphs, and its service.
#ifndef FERRY_NODE_NODE_WORKER_H_
#define FERRY_NODE_NODE_WORKER_H_

#include <memory>
#include <vector>

#include "node/transfer_engine.h"
#include "node/transfer_steps.h"
#include "rendezvous/proof_policy.h"
#include "tensorflow/worker/worker.h"
#include "topology/device.h"

namespace ferry {

struct NodeWorkerOptions {
  // Nodes that run at the same time; 0: as many as there are processors.
  int thread_count = 0;
  worker::WorkerLimits limits;
  // Whether masters must prove that they know the job's token.
  ProofPolicy proof;
  // Of this node, with others perhaps; its GPUs are offered if the exchange uses them.
  std::vector<Device> devices;
  // See TransferSteps.
  TransferSteps::Lookup lookup;
};

// Thread-safe. Made while an exchange starts, and outlives its server; `exchange` outlives it.
class NodeWorker final {
 public:
  NodeWorker(TransferEngine& exchange, NodeWorkerOptions options);
  ~NodeWorker();

  worker::Worker& worker() { return worker_; }
  grpc::Service& service() { return *service_; }

 private:
  TransferSteps steps_;
  worker::Worker worker_;
  const std::unique_ptr<grpc::Service> service_;
};

}  // namespace ferry

#endif  // FERRY_NODE_NODE_WORKER_H_
