// SPDX-License-Identifier: Apache-2.0
// HostBackend: collectives of tensors in host memory, over the step's rendezvous.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_HOST_BACKEND_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_HOST_BACKEND_H_

#include <memory>

#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

struct HostBackendOptions {
  // Up to this total size of all members' inputs, all-to-all is used: one network latency instead
  // of two per member.
  size_t max_direct_bytes = size_t{256} << 10;
  // Larger pieces are reduced and copied on the executor, not on the receiving thread.
  size_t max_inline_bytes = size_t{64} << 10;
  // Up to this many receivers, the source of a broadcast sends directly; beyond, receivers forward
  // it along a tree.
  int max_fan_out = 4;
};

// Thread-safe; used by one run of a graph in one step.
//
// Reduce: a ring, with as many pieces as members. Each piece goes round once while every member
// reduces its own part into it; then the finished pieces go round. The member at which a piece
// starts determines the reduction order, so all members get bit-identical results. Small inputs:
// all-to-all, and every member reduces all parts by rank.
// Gather: all-to-all. Broadcast: a tree; receivers get a view of the received tensor.
//
// Sent tensors are never written again, because receivers may read the sender's memory directly:
// partial results use separate buffers, and the result is written once.
class HostBackend final : public CollectiveBackend {
 public:
  //   executor: must outlive what it runs.
  HostBackend(std::shared_ptr<StepTransfers> transfers, const Executor* executor,
              HostBackendOptions options = {})
      : transfers_(std::move(transfers)), executor_(executor), options_(options) {}

  void Run(CollectiveWork work, RecvCallback done) override;

 private:
  const std::shared_ptr<StepTransfers> transfers_;
  const Executor* const executor_;
  const HostBackendOptions options_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_HOST_BACKEND_H_
