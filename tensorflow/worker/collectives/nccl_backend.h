// SPDX-License-Identifier: Apache-2.0
// NcclBackend: collectives of GPUs by NCCL, in an order that all GPUs of the job agree on.
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
  // Only for tests, which show what happens without.
  bool takes_turns = true;
};

// Thread-safe; of one run of a graph in one step. What the leader has not given to NCCL goes to
// `otherwise`.
//
// Each GPU has a line. The ranks of a collective enter theirs one after the other, by rank: who has
// come to the head tells the next one, and the last one tells all to go. Then all launch, and leave
// the line when that is done. Ranks are in the order of devices, which is one for the whole job: so
// whoever is at the head of a line waits only for lines of later devices, and in all lines any two
// collectives are in the same order. docs/collectives.md has the proof.
//
// Who waits hears of failures because each rank has a receive from the one before it, which nothing
// is ever sent to: it fails when the step fails there.
class NcclBackend final : public CollectiveBackend {
 public:
  NcclBackend(std::shared_ptr<StepTransfers> exchange, CollectiveGpus& gpus,
              std::unique_ptr<CollectiveBackend> otherwise, const Executor* executor,
              NcclBackendRules rules = {})
      : exchange_(std::move(exchange)),
        gpus_(gpus),
        otherwise_(std::move(otherwise)),
        executor_(executor),
        rules_(rules) {}

  void Run(CollectiveWork work, RecvCallback done) override;

 private:
  const std::shared_ptr<StepTransfers> exchange_;
  CollectiveGpus& gpus_;
  const std::unique_ptr<CollectiveBackend> otherwise_;
  const Executor* const executor_;
  const NcclBackendRules rules_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_NCCL_BACKEND_H_
