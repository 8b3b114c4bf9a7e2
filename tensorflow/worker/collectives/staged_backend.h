// SPDX-License-Identifier: Apache-2.0
// StagedBackend: collectives of tensors on GPUs, by way of the host's memory.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_STAGED_BACKEND_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_STAGED_BACKEND_H_

#include <functional>
#include <memory>
#include <utility>

#include "gpu/gpus.h"
#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/graph_run.h"

namespace ferry::worker {

// As Gpus::Move.
using MoveTensor = std::function<void(MoveRequest request, Gpus::MoveCallback done)>;

// Thread-safe; of one run of a graph in one step. What a node has in a GPU's memory is copied to
// the host's when whatever writes it has ended, carried from there, and what comes is copied back:
// it is given with the event that says when it is there. Nobody waits for copies. Nodes whose
// tensors are in the host's memory, and those that are alone, go straight on.
class StagedBackend final : public CollectiveBackend {
 public:
  //   on_host: carries what is in the host's memory.
  //   executor: outlives what it runs, since a thread of a device's is not for merging.
  StagedBackend(std::unique_ptr<CollectiveBackend> on_host, MoveTensor move,
                const Executor* executor)
      : on_host_(std::move(on_host)), move_(std::move(move)), executor_(executor) {}

  void Run(CollectiveWork work, RecvCallback done) override;

 private:
  const std::unique_ptr<CollectiveBackend> on_host_;
  const MoveTensor move_;
  const Executor* const executor_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_STAGED_BACKEND_H_
