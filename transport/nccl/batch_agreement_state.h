// SPDX-License-Identifier: Apache-2.0
// BatchAgreementState: the tables of one device's batch agreement endpoint.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_STATE_H_
#define FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_STATE_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "transport/nccl/batch_agreement_action.h"
#include "transport/nccl/batch_agreement_types.h"
#include "transport/nccl/batch_queue.h"
#include "transport/nccl/communicator_table.h"
#include "transport/nccl/transfer_table.h"

namespace ferry {

// The three tables, and the steps that change more than one of them. The endpoint owns it, and
// lends it to its BatchGranter for each call. Not thread-safe; a value.
struct BatchAgreementState {
  BatchAgreementState(DeviceId self, const BatchAgreementOptions& options)
      : self(self), options(options), transfers(self), communicators(self) {}

  // Ends a transfer on this side. REQUIRES: it is in `transfers`.
  void Finish(const TransferKey& key, absl::Status status, BatchAgreementActions& actions);
  // Both devices run the operations: appends them to the queue.
  void Append(const BatchName& name, DeviceId peer,
              std::vector<BatchAgreementOperation> operations);
  // Launches the batches whose turn it is.
  void Launch(BatchAgreementActions& actions);

  DeviceId self;
  BatchAgreementOptions options;
  TransferTable transfers;
  CommunicatorTable communicators;
  BatchQueue queue;

  template <typename H>
  friend H AbslHashValue(H state, const BatchAgreementState& s) {
    return H::combine(std::move(state), s.transfers, s.communicators, s.queue);
  }
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_STATE_H_
