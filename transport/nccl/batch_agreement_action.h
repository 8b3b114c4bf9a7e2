// SPDX-License-Identifier: Apache-2.0
// What a grant endpoint wants to be done.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ACTION_H_
#define FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ACTION_H_

#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "transport/nccl/batch_agreement_message.h"
#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// To message.to, in order with all others to that device.
struct SendMessage {
  BatchAgreementMessage message;
};

// The device's executor issues it after those that were launched before; then Completed, once.
struct LaunchBatch {
  AgreedBatch batch;
};

// The transfer is over on this side, and its memory is the owner's again.
//   OK: the destination has it. ABORTED: it may be run again, under a new id, or go another way.
//   UNAVAILABLE: the peer has failed. CANCELLED or what Cancel was given. NOT_FOUND: the peer does
//   not want it. INVALID_ARGUMENT: the two sides know different sizes. DEADLINE_EXCEEDED.
struct FinishTransfer {
  TransferKey key;
  absl::Status status;
};

// The end of a communicator, in three steps; each is done for all that are concerned before the
// next begins for any. Flagged: nothing may be issued on it any more.
struct FlagCommunicator {
  CommunicatorName name;
  absl::Status why;
  // The device that has failed, if one has.
  DeviceId died = kNoDevice;
};
// Whoever runs on it is thrown out: its launched batches complete soon, in whatever way.
struct AbortCommunicator {
  CommunicatorName name;
};
// Nothing runs on any that is flagged. Its devices may open the next generation.
struct FreeCommunicator {
  CommunicatorName name;
};

using GrantAction = std::variant<SendMessage, LaunchBatch, FinishTransfer, FlagCommunicator,
                                 AbortCommunicator, FreeCommunicator>;
using GrantActions = std::vector<GrantAction>;

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ACTION_H_
