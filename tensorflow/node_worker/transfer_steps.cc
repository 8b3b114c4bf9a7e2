// SPDX-License-Identifier: Apache-2.0
// TransferSteps: combines a Step with its rendezvous, which can abort without closing the step.
#include "tensorflow/node_worker/transfer_steps.h"

#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

class OpenStep final : public worker::StepTransfers {
 public:
  OpenStep(Step step, std::shared_ptr<RemoteRendezvous> rendezvous)
      : step_(std::move(step)), rendezvous_(std::move(rendezvous)) {}

  absl::Status Send(const RendezvousKey& key, Tensor tensor, bool is_dead) override {
    return rendezvous_->Send(key, std::move(tensor), is_dead);
  }
  void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) override {
    step_.RecvAsync(key, std::move(args), std::move(done));
  }
  void Abort(const absl::Status& why) override {
    FERRY_LOG_DEBUG(kRendezvous, "step aborted: step={}: {}", step_.id(), why);
    rendezvous_->StartAbort(why);
  }

 private:
  Step step_;
  const std::shared_ptr<RemoteRendezvous> rendezvous_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<worker::StepTransfers>> TransferSteps::Open(int64_t step_id) {
  FERRY_ASSIGN_OR_RETURN(Step step, engine_.OpenStep(step_id));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<RemoteRendezvous> rendezvous,
                         engine_.rendezvous().Find(step_id));
  return std::make_shared<OpenStep>(std::move(step), std::move(rendezvous));
}

}  // namespace ferry
