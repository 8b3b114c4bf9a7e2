// SPDX-License-Identifier: Apache-2.0
// NcclBackend: collectives on GPUs by NCCL, launched in an order that all GPUs of the job share.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_BACKEND_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_BACKEND_H_

#include <memory>
#include <utility>

#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/collectives/collective_gpu.h"
#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

struct NcclBackendRules {
  // False only in tests that demonstrate the deadlock.
  bool takes_turns = true;
};

// Thread-safe; used by one run of a graph in one step. Work for which the leader did not choose
// NCCL goes to `otherwise`.
//
// Each GPU has a line (AsyncFifoLock). The ranks of a collective enter their lines one after the
// other, by rank: a rank that reaches the head tells the next rank to enter, and the last rank
// tells all to go. Then all ranks launch, and leave the line once that is done. Ranks follow the
// order of devices, which is the same for the whole job: a rank at the head of a line therefore
// waits only for lines of later devices, and any two collectives are in the same order in all
// lines. docs/collectives.md has the proof.
//
// Failures reach waiting ranks because each rank posts a receive from the previous rank for a
// tensor that is never sent: it fails when the step fails there.
class NcclBackend final : public CollectiveBackend {
 public:
  NcclBackend(std::shared_ptr<StepTransfers> transfers, CollectiveGpus& gpus,
              std::unique_ptr<CollectiveBackend> otherwise, const Executor* executor,
              NcclBackendRules rules = {})
      : transfers_(std::move(transfers)),
        gpus_(gpus),
        otherwise_(std::move(otherwise)),
        executor_(executor),
        rules_(rules) {}

  void Run(CollectiveWork work, RecvCallback done) override;

 private:
  const std::shared_ptr<StepTransfers> transfers_;
  CollectiveGpus& gpus_;
  const std::unique_ptr<CollectiveBackend> otherwise_;
  const Executor* const executor_;
  const NcclBackendRules rules_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_BACKEND_H_
