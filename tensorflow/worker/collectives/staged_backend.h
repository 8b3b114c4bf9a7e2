// SPDX-License-Identifier: Apache-2.0
// StagedBackend: collectives of tensors on GPUs, staged through host memory.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_STAGED_BACKEND_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_STAGED_BACKEND_H_

#include <functional>
#include <memory>
#include <utility>

#include "gpu/gpus.h"
#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/graph_run.h"

namespace ferry::worker {

// Same as Gpus::Move.
using MoveTensor = std::function<void(MoveRequest request, Gpus::MoveCallback done)>;

// Thread-safe; used by one run of a graph in one step. An input in GPU memory is copied to the host
// once its writers have finished, and the result is copied back and returned with the event that
// signals its completion. No thread waits for copies. Nodes with tensors in host memory, and groups
// of one member, bypass the staging.
class StagedBackend final : public CollectiveBackend {
 public:
  //   on_host: runs the collectives in host memory.
  //   executor: must outlive what it runs; used because device threads must not run reductions.
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
