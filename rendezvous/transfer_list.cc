// SPDX-License-Identifier: Apache-2.0
// A set of values in transit.
#include "rendezvous/transfer_list.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ferry {

std::shared_ptr<TransferList::Transfer> TransferList::Add(int64_t step_id, const RendezvousKey& key,
                                                          size_t bytes, bool is_kept,
                                                          StepOperation operation) {
  auto transfer = std::make_shared<Transfer>(step_id, key, bytes, is_kept, clock_.CoarseNow(),
                                             std::move(operation));
  absl::MutexLock lock(&mu_);
  transfers_.insert(transfer);
  return transfer;
}

void TransferList::Remove(const std::shared_ptr<Transfer>& transfer) {
  {
    absl::MutexLock lock(&mu_);
    transfers_.erase(transfer);
  }
  transfer->operation.End();
}

void TransferList::EndStep(int64_t step_id) {
  absl::MutexLock lock(&mu_);
  for (const auto& each : transfers_) {
    if (each->step_id == step_id) each->is_step_over.store(true, std::memory_order_relaxed);
  }
}

std::vector<std::shared_ptr<TransferList::Transfer>> TransferList::To(const TaskName& task) const {
  std::vector<std::shared_ptr<Transfer>> found;
  absl::MutexLock lock(&mu_);
  for (const auto& each : transfers_) {
    if (each->key.dst().task == task) found.push_back(each);
  }
  return found;
}

void TransferList::ForEach(absl::Duration min_age, PendingVisitor visit) const {
  std::vector<std::shared_ptr<Transfer>> transfers;
  {
    absl::MutexLock lock(&mu_);
    transfers.assign(transfers_.begin(), transfers_.end());
  }
  const absl::Time now = clock_.CoarseNow();
  for (const auto& each : transfers) {
    const absl::Duration age = now - each->since;
    if (age < min_age) continue;
    visit({.step_id = each->step_id,
           .key = each->key,
           .side = PendingStepOp::Side::kTransfer,
           .bytes = each->bytes,
           .age = age,
           .phase = absl::StrCat("being sent to ", ToString(each->key.dst().task),
                                 " by grpc; not all there yet")});
  }
}

}  // namespace ferry
