// SPDX-License-Identifier: Apache-2.0
// ReceiveCanceller: cancels receives that wait in a table, which may be destroyed meanwhile.
#ifndef FERRY_RENDEZVOUS_RECEIVE_CANCELLER_H_
#define FERRY_RENDEZVOUS_RECEIVE_CANCELLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"

#include "base/cancellation_token.h"
#include "base/spin_lock.h"
#include "rendezvous/key.h"
#include "rendezvous/rendezvous_shard.h"

namespace ferry {

// One for a table, shared with the cancellations. Thread-safe. Lock order: this, then the table's.
class ReceiveCanceller final : public std::enable_shared_from_this<ReceiveCanceller> {
 public:
  // Removes a receive from the table; null: it no longer waits.
  using TakeReceive =
      std::function<std::unique_ptr<RendezvousItem>(const RendezvousKey& key, uint64_t id)>;

  explicit ReceiveCanceller(TakeReceive take) : take_(std::move(take)) {}

  // Before the table is destroyed: from now on cancellations find nothing. Waits for a removal in
  // progress, not for the callback of the receive that it has removed.
  void Detach() ABSL_LOCKS_EXCLUDED(mu_);
  // Registers the receive: its cancellation removes it and ends it with CANCELLED. kNoCallback: the
  // token is cancelled. May be called with the table's lock held, since it does not take this one.
  CancellationToken::CallbackId Register(CancellationToken& token, const RendezvousKey& key,
                                         uint64_t id);

 private:
  struct CancelCallback;

  SpinLock mu_;
  // Empty once the table is destroyed.
  TakeReceive take_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECEIVE_CANCELLER_H_
