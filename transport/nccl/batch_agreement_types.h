// SPDX-License-Identifier: Apache-2.0
// Types for keyed transfers over NCCL. How they are used: docs/nccl.md.
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

// Identifies a transfer. Ids are chosen by the destination and never reused between two devices.
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

// Set in the ids of transfers that stand for the set-up of a window (PutEndpoint), and in no other.
inline constexpr uint64_t kWindowTransferBit = uint64_t{1} << 63;

// A tensor that its producer has matched with a request.
struct BatchAgreementTransfer {
  TransferKey key;
  uint64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();
};

// One generation of a communicator. `id` stands for an ordered set of devices; a later generation
// shares nothing with an earlier one.
struct CommunicatorName {
  uint64_t id = 0;
  uint32_t generation = 0;

  friend auto operator<=>(const CommunicatorName&, const CommunicatorName&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const CommunicatorName& name) {
    return H::combine(std::move(state), name.id, name.generation);
  }
};

// One send and its matching receive.
struct BatchAgreementOperation {
  TransferKey key;
  uint64_t bytes = 0;

  friend bool operator==(const BatchAgreementOperation&, const BatchAgreementOperation&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BatchAgreementOperation& operation) {
    return H::combine(std::move(state), operation.key, operation.bytes);
  }
};

// Identifies a batch: the granter numbers them from 1.
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

// Operations that a device and its peer each issue in one group, in this order.
struct AgreedBatch {
  BatchName name;
  // The other device.
  DeviceId peer = kNoDevice;
  // The first batch between the two on this communicator: before it, both exchange one element in
  // each direction, in a group of its own, so that NCCL sets up its connections in the same order
  // on both sides.
  bool is_first = false;
  std::vector<BatchAgreementOperation> operations;

  friend bool operator==(const AgreedBatch&, const AgreedBatch&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const AgreedBatch& batch) {
    return H::combine(std::move(state), batch.name, batch.peer, batch.is_first, batch.operations);
  }
};

// Limited by the message masks' bits; NCCL may also split larger groups differently on two ranks.
inline constexpr size_t kMaxBatchOperations = 32;

// The rules that the protocol depends on. All are in force; a test disables one to show what it
// prevents.
struct BatchAgreementRules {
  // The holder of a device's lock waits only for the lock of a device with a larger id.
  bool locks_in_id_order = true;
  // The granter keeps its device's lock until the peer has answered.
  bool holds_lock_until_answer = true;
  // The granter launches what the peer has acknowledged, not what it granted.
  bool acknowledges_before_launch = true;
  // Messages of another generation are ignored.
  bool checks_generation = true;
  // A sender releases the memory of a launched transfer only after the receiver has reported its
  // outcome (DONE or SETTLED), or has died.
  bool waits_for_verdict = true;
  // A paused device declines grants instead of making their granters wait until it resumes.
  bool declines_while_paused = true;
};

struct BatchAgreementOptions {
  // Operations per batch; at most kMaxBatchOperations.
  size_t max_batch_operations = kMaxBatchOperations;
  // Bytes per batch; a single transfer may be larger.
  uint64_t max_batch_bytes = uint64_t{64} << 20;
  // Agreed and unfinished batches per device. With 1, a device agrees on nothing while a batch
  // runs.
  size_t max_batches = 4;
  // The number of those that are handed to the device's executor, which runs them in order.
  size_t max_launched = 2;
  // Extra time for a transfer that is in a batch when its deadline passes, before its communicator
  // is aborted; and for the peer to report its outcome.
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
