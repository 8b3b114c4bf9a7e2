// SPDX-License-Identifier: Apache-2.0
// BatchQueue: the agreed batches of one device, in the order in which it runs them.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_QUEUE_H_
#define FERRY_TRANSPORT_NCCL_BATCH_QUEUE_H_

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"

#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// A batch is appended once the device and its peer have agreed on it, launched in its turn, and
// removed once it has completed here. What it sent stays as unacknowledged until the peer has
// reported that it has received the batch. Not thread-safe; a value.
class BatchQueue final {
 public:
  // The transfers that a completed batch sent and its receiver has not acknowledged yet.
  struct Unacknowledged {
    CommunicatorName communicator;
    DeviceId peer = kNoDevice;
    std::vector<TransferKey> keys;

    template <typename H>
    friend H AbslHashValue(H state, const Unacknowledged& sent) {
      return H::combine(std::move(state), sent.peer, sent.keys);
    }
  };
  // A batch, and whether the peer has sent DONE for it before this side completed.
  struct Completed {
    AgreedBatch batch;
    bool is_done_there = false;
  };

  void Append(AgreedBatch batch);
  // Calls `launch` for each batch that is among the first `max_launched` and is not launched yet.
  void Launch(size_t max_launched, absl::FunctionRef<void(const AgreedBatch& batch)> launch);
  // Removes a batch. REQUIRES: it was launched.
  Completed Complete(const BatchName& name);
  void AwaitAcknowledgement(const BatchName& name, DeviceId peer, std::vector<TransferKey> keys);
  // `peer` has received the batch. Returns what is thereby acknowledged.
  std::vector<TransferKey> Acknowledge(const BatchName& name, DeviceId peer);

  // Removes the communicator's batches that are not launched, and returns them in order.
  std::vector<AgreedBatch> RemoveUnlaunched(const CommunicatorName& communicator);
  // Removes what was not acknowledged on that communicator and by that peer, if given.
  std::vector<Unacknowledged> RemoveUnacknowledged(std::optional<CommunicatorName> communicator,
                                                   std::optional<DeviceId> peer);
  // Removes one unacknowledged transfer of a batch. REQUIRES: it is there.
  void RemoveUnacknowledged(const BatchName& name, const TransferKey& key);

  bool HasBatchWith(DeviceId peer) const;
  bool HasBatch(absl::FunctionRef<bool(const CommunicatorName& communicator)> is_wanted) const;
  // The batch that a transfer is in, or was sent with.
  std::optional<BatchName> BatchOf(const TransferKey& key) const;
  // Batches that are not over here, launched or not.
  size_t size() const { return queue_.size(); }
  bool empty() const { return queue_.empty(); }
  size_t unacknowledged_count() const { return unacknowledged_.size(); }

  template <typename H>
  friend H AbslHashValue(H state, const BatchQueue& queue) {
    return H::combine(std::move(state), queue.queue_, queue.unacknowledged_);
  }

 private:
  struct Agreed {
    AgreedBatch batch;
    bool is_launched = false;
    // The peer sent DONE before this side completed.
    bool is_done_there = false;

    template <typename H>
    friend H AbslHashValue(H state, const Agreed& agreed) {
      return H::combine(std::move(state), agreed.batch, agreed.is_launched, agreed.is_done_there);
    }
  };

  // Launched batches come first.
  std::vector<Agreed> queue_;
  absl::btree_map<BatchName, Unacknowledged> unacknowledged_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_QUEUE_H_
