// SPDX-License-Identifier: Apache-2.0
// Actions that an endpoint of one-sided transfers requests from its caller.
#ifndef FERRY_TRANSPORT_NCCL_PUT_ACTION_H_
#define FERRY_TRANSPORT_NCCL_PUT_ACTION_H_

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "transport/nccl/batch_agreement_types.h"
#include "transport/nccl/put_message.h"

namespace ferry {

// Send to message.to(), in order with all other messages to that device.
struct SendPutMessage {
  PutMessage message;
};

// At the source: put the bytes into the peer's window, after earlier puts on that communicator;
// then call PutPassed or PutLost, once.
struct IssuePut {
  TransferKey key;
  CommunicatorName communicator;
  // In this device's window and in the peer's.
  uint64_t source_offset = 0;
  uint64_t destination_offset = 0;
  uint64_t bytes = 0;
};

// At the destination: let a stream wait for so many more signals of the peer, all of which have
// been sent; then call WaitPassed or WaitLost, once.
struct IssueWait {
  DeviceId peer = kNoDevice;
  CommunicatorName communicator;
  int signals = 0;
  // Size of the blocks that are complete then.
  uint64_t bytes = 0;
};

// The transfer is over on this side. The status as for FinishTransfer.
struct FinishPut {
  TransferKey key;
  absl::Status status;
  // At the destination, if OK: the block with its bytes, which belongs to the caller until
  // ReturnBlock, and the size of the transfer.
  std::optional<uint64_t> offset;
  uint64_t bytes = 0;
};

// At the source: the destination wants the transfer in a batch. Its block is free. The caller adds
// it to the batches before it hears another message or call about it.
struct SendInBatch {
  TransferKey key;
};

// A put or a wait has exceeded its deadline: end the communicator.
struct BreakForPut {
  CommunicatorName communicator;
  absl::Status why;
};

// A block of this device's pool is never used again: something may still read or write it. To be
// logged.
struct ReportRetired {
  uint64_t bytes = 0;
  // Sum of all that are retired.
  uint64_t total_bytes = 0;
  absl::Status why;
};

using PutAction = std::variant<SendPutMessage, IssuePut, IssueWait, FinishPut, SendInBatch,
                               BreakForPut, ReportRetired>;
using PutActions = std::vector<PutAction>;

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PUT_ACTION_H_
