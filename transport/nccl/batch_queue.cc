// SPDX-License-Identifier: Apache-2.0
// BatchQueue: the agreed batches of one device, in the order in which it runs them.
#include "transport/nccl/batch_queue.h"

#include <algorithm>

#include "base/status_macros.h"

namespace ferry {

void BatchQueue::Append(AgreedBatch batch) { queue_.push_back({.batch = std::move(batch)}); }

void BatchQueue::Launch(size_t max_launched,
                        absl::FunctionRef<void(const AgreedBatch& batch)> launch) {
  size_t launched = 0;
  for (Agreed& agreed : queue_) {
    if (++launched > max_launched) return;
    if (!std::exchange(agreed.is_launched, true)) launch(agreed.batch);
  }
}

BatchQueue::Completed BatchQueue::Complete(const BatchName& name) {
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&name](const Agreed& agreed) {
    return agreed.is_launched && agreed.batch.name == name;
  });
  FERRY_CHECK(found != queue_.end());
  Completed completed{std::move(found->batch), found->is_done_there};
  queue_.erase(found);
  return completed;
}

void BatchQueue::AwaitAcknowledgement(const BatchName& name, DeviceId peer,
                                      std::vector<TransferKey> keys) {
  unacknowledged_.emplace(name, Unacknowledged{name.communicator, peer, std::move(keys)});
}

std::vector<TransferKey> BatchQueue::Acknowledge(const BatchName& name, DeviceId peer) {
  const auto sent = unacknowledged_.find(name);
  if (sent != unacknowledged_.end() && sent->second.peer == peer) {
    std::vector<TransferKey> keys = std::move(sent->second.keys);
    unacknowledged_.erase(sent);
    return keys;
  }
  for (Agreed& agreed : queue_) {
    if (agreed.is_launched && agreed.batch.name == name && agreed.batch.peer == peer) {
      agreed.is_done_there = true;
    }
  }
  return {};
}

std::vector<AgreedBatch> BatchQueue::RemoveUnlaunched(const CommunicatorName& communicator) {
  std::vector<AgreedBatch> removed;
  for (auto agreed = queue_.begin(); agreed != queue_.end();) {
    if (agreed->is_launched || agreed->batch.name.communicator != communicator) {
      ++agreed;
      continue;
    }
    removed.push_back(std::move(agreed->batch));
    agreed = queue_.erase(agreed);
  }
  return removed;
}

std::vector<BatchQueue::Unacknowledged> BatchQueue::RemoveUnacknowledged(
    std::optional<CommunicatorName> communicator, std::optional<DeviceId> peer) {
  std::vector<Unacknowledged> removed;
  for (auto sent = unacknowledged_.begin(); sent != unacknowledged_.end();) {
    if (communicator.value_or(sent->second.communicator) != sent->second.communicator ||
        peer.value_or(sent->second.peer) != sent->second.peer) {
      ++sent;
      continue;
    }
    removed.push_back(std::move(sent->second));
    sent = unacknowledged_.erase(sent);
  }
  return removed;
}

void BatchQueue::RemoveUnacknowledged(const BatchName& name, const TransferKey& key) {
  std::vector<TransferKey>& keys = unacknowledged_.find(name)->second.keys;
  keys.erase(std::find(keys.begin(), keys.end(), key));
}

bool BatchQueue::HasBatchWith(DeviceId peer) const {
  return std::any_of(queue_.begin(), queue_.end(),
                     [peer](const Agreed& agreed) { return agreed.batch.peer == peer; });
}

bool BatchQueue::HasBatch(
    absl::FunctionRef<bool(const CommunicatorName& communicator)> is_wanted) const {
  return std::any_of(queue_.begin(), queue_.end(), [is_wanted](const Agreed& agreed) {
    return is_wanted(agreed.batch.name.communicator);
  });
}

std::optional<BatchName> BatchQueue::BatchOf(const TransferKey& key) const {
  for (const Agreed& agreed : queue_) {
    for (const BatchAgreementOperation& operation : agreed.batch.operations) {
      if (operation.key == key) return agreed.batch.name;
    }
  }
  for (const auto& [name, sent] : unacknowledged_) {
    if (std::find(sent.keys.begin(), sent.keys.end(), key) != sent.keys.end()) return name;
  }
  return std::nullopt;
}

}  // namespace ferry
