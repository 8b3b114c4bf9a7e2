// SPDX-License-Identifier: Apache-2.0
// The words of keyed transfers over NCCL. How they are used: docs/nccl.md.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_TYPES_H_
#define FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_TYPES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "base/strong_id.h"

namespace ferry {

// A device of the job, by its global id (GlobalTopology).
using DeviceId = StrongId<struct DeviceIdTag, int32_t>;
inline constexpr DeviceId kNoDevice{-1};

// Names a transfer. Ids are the destination's; none is used twice between two devices.
struct TransferKey {
  DeviceId source = kNoDevice;
  DeviceId destination = kNoDevice;
  uint64_t id = 0;

  friend auto operator<=>(const TransferKey&, const TransferKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const TransferKey& key) {
    return H::combine(std::move(state), key.source, key.destination, key.id);
  }
};

// A tensor that its producer has matched with a request for it.
struct BatchAgreementTransfer {
  TransferKey key;
  uint64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();
};

// A communicator in one of its lives. `id` stands for an ordered set of devices; a later generation
// of it shares nothing with an earlier one.
struct CommunicatorName {
  uint64_t id = 0;
  uint32_t generation = 0;

  friend auto operator<=>(const CommunicatorName&, const CommunicatorName&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const CommunicatorName& name) {
    return H::combine(std::move(state), name.id, name.generation);
  }
};

// One send and the receive that belongs to it.
struct BatchAgreementOperation {
  TransferKey key;
  uint64_t bytes = 0;

  friend bool operator==(const BatchAgreementOperation&, const BatchAgreementOperation&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BatchAgreementOperation& operation) {
    return H::combine(std::move(state), operation.key, operation.bytes);
  }
};

// Which batch: the granter counts them, from 1.
struct BatchName {
  CommunicatorName communicator;
  DeviceId granter = kNoDevice;
  uint64_t serial = 0;

  friend auto operator<=>(const BatchName&, const BatchName&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BatchName& name) {
    return H::combine(std::move(state), name.communicator, name.granter, name.serial);
  }
};

// What one device and its peer issue in one group, both in this order.
struct AgreedBatch {
  BatchName name;
  // The other device.
  DeviceId peer = kNoDevice;
  // Nothing has gone between the two on this communicator: before the batch both exchange one
  // element each way, in a group of its own, so that NCCL's connections are made the same way on
  // both sides.
  bool is_first = false;
  std::vector<BatchAgreementOperation> operations;

  friend bool operator==(const AgreedBatch&, const AgreedBatch&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const AgreedBatch& batch) {
    return H::combine(std::move(state), batch.name, batch.peer, batch.is_first, batch.operations);
  }
};

// The masks of messages have that many bits; NCCL may cut larger groups differently on two ranks.
inline constexpr size_t kMaxBatchOperations = 32;

// The rules that the protocol rests on. All are kept; a test leaves one out to see what it
// prevents.
struct BatchAgreementRules {
  // Who holds the lock of a device waits only for that of a device with a larger id.
  bool locks_in_id_order = true;
  // The granter keeps its device's lock until the peer has answered.
  bool holds_lock_until_answer = true;
  // The granter launches what the peer has acknowledged, not what it has granted.
  bool acknowledges_before_launch = true;
  // Messages of another generation are not taken for messages of this one.
  bool checks_generation = true;
  // A sender gives a launched transfer back only when the receiver has said that it has not got it.
  bool waits_for_verdict = true;
  // A device that agrees on nothing new declines grants, and does not keep their granters waiting
  // until it does again.
  bool declines_while_paused = true;
};

struct BatchAgreementOptions {
  // Of one batch; at most kMaxBatchOperations.
  size_t max_batch_operations = kMaxBatchOperations;
  // Of one batch; a single transfer may be larger.
  uint64_t max_batch_bytes = uint64_t{64} << 20;
  // Agreed and not over, of one device. With 1 a device agrees on nothing while a batch runs.
  size_t max_batches = 4;
  // Of those, how many are in the hands of the device's executor, which runs them in order.
  size_t max_launched = 2;
  // A transfer that is in a batch when its deadline comes has that much longer to be over, before
  // the communicator is aborted for it; and the peer as long to say what became of it.
  absl::Duration abort_grace = absl::Seconds(5);
  BatchAgreementRules rules;
};

// "device 3".
std::string Describe(DeviceId device);
// "transfer 7 from device 1 to device 2".
std::string Describe(const TransferKey& key);
// "communicator 00000000000000f7 generation 2".
std::string Describe(const CommunicatorName& name);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_TYPES_H_
