// SPDX-License-Identifier: Apache-2.0
// Actions that a batch agreement endpoint requests from its caller.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ACTION_H_
#define FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ACTION_H_

#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "transport/nccl/batch_agreement_message.h"
#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// Send to message.to, in order with all other messages to that device.
struct SendMessage {
  BatchAgreementMessage message;
};

// Issue on the device's executor, after batches launched before; then call Completed, once.
struct LaunchBatch {
  AgreedBatch batch;
};

// The transfer is over on this side, and its memory belongs to the owner again.
//   OK: the destination has it. ABORTED: it may be retried, under a new id, or over another path.
//   UNAVAILABLE: the peer has failed. CANCELLED, or the status given to Cancel. NOT_FOUND: the peer
//   has no request for it. INVALID_ARGUMENT: the sizes differ. DEADLINE_EXCEEDED.
struct FinishTransfer {
  TransferKey key;
  absl::Status status;
};

// The three steps of ending a communicator; each is done for all communicators concerned before the
// next begins for any. Flagged: nothing may be issued on it any more.
struct FlagCommunicator {
  CommunicatorName name;
  absl::Status why;
  // The device that has failed, if any.
  DeviceId died = kNoDevice;
};
// Aborts what runs on it: its launched batches complete soon, with any status.
struct AbortCommunicator {
  CommunicatorName name;
};
// Nothing runs on any flagged communicator. Its devices may open the next generation.
struct FreeCommunicator {
  CommunicatorName name;
};

using GrantAction = std::variant<SendMessage, LaunchBatch, FinishTransfer, FlagCommunicator,
                                 AbortCommunicator, FreeCommunicator>;
using BatchAgreementActions = std::vector<GrantAction>;

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ACTION_H_
