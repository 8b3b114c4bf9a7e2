// SPDX-License-Identifier: Apache-2.0
// HostBackend: collectives of tensors in host memory, over the rendezvous of the step.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_HOST_BACKEND_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_HOST_BACKEND_H_

#include <memory>

#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

struct HostBackendOptions {
  // Inputs of up to so many bytes, of all members together, go from everybody to everybody, which
  // takes one way instead of two for each member.
  size_t max_direct_bytes = size_t{256} << 10;
  // What is longer is merged and copied by the executor, not by the thread that brings it.
  size_t max_inline_bytes = size_t{64} << 10;
  // To so many a source sends by itself; beyond it the receivers pass it on, as a tree.
  int max_fan_out = 4;
};

// Thread-safe; of one run of a graph in one step.
//
// Reduce: in a ring, in as many pieces as there are members. Each piece goes round once, and every
// member merges its own part into it; then the finished pieces go round. Where a piece begins
// decides in which order it is merged, so that all members get the same bits. Small ones: everybody
// merges all parts, by rank.
// Gather: from everybody to everybody. Broadcast: a tree; receivers get a view of what has come.
//
// What has been sent is not written any more, since receivers may read the sender's own memory: a
// piece that is not finished lies in a buffer of its own, the result is written once.
class HostBackend final : public CollectiveBackend {
 public:
  //   executor: outlives what it runs.
  HostBackend(std::shared_ptr<StepTransfers> exchange, const Executor* executor,
              HostBackendOptions options = {})
      : exchange_(std::move(exchange)), executor_(executor), options_(options) {}

  void Run(CollectiveWork work, RecvCallback done) override;

 private:
  const std::shared_ptr<StepTransfers> exchange_;
  const Executor* const executor_;
  const HostBackendOptions options_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_HOST_BACKEND_H_
