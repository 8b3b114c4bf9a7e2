// SPDX-License-Identifier: Apache-2.0
// BatchAgreementState: the tables of one device's batch agreement endpoint.
#include "transport/nccl/batch_agreement_state.h"

namespace ferry {

void BatchAgreementState::Finish(const TransferKey& key, absl::Status status,
                                 BatchAgreementActions& actions) {
  transfers.Remove(key);
  actions.push_back(FinishTransfer{key, std::move(status)});
}

void BatchAgreementState::Append(const BatchName& name, DeviceId peer,
                                 std::vector<BatchAgreementOperation> operations) {
  for (const BatchAgreementOperation& operation : operations) {
    transfers.SetPhase(operation.key, TransferPhase::kAgreed);
  }
  AgreedBatch batch;
  batch.name = name;
  batch.peer = peer;
  batch.is_first = communicators.MarkUsed(name.communicator.id, peer);
  batch.operations = std::move(operations);
  queue.Append(std::move(batch));
}

void BatchAgreementState::Launch(BatchAgreementActions& actions) {
  queue.Launch(options.max_launched, [this, &actions](const AgreedBatch& batch) {
    for (const BatchAgreementOperation& operation : batch.operations) {
      transfers.SetPhase(operation.key, TransferPhase::kLaunched);
    }
    actions.push_back(LaunchBatch{batch});
  });
}

}  // namespace ferry
