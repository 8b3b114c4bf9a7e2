// SPDX-License-Identifier: Apache-2.0
// The callback that a cancellation token calls.
#include "rendezvous/receive_canceller.h"

#include <utility>

#include "base/recycled.h"
#include "rendezvous/local_rendezvous.h"

namespace ferry {

struct ReceiveCanceller::CancelCallback {
  static void* operator new(size_t bytes) { return AllocateRecycled(bytes); }
  static void operator delete(void* callback, size_t bytes) { FreeRecycled(callback, bytes); }

  CancelCallback(std::shared_ptr<ReceiveCanceller> canceller, const RendezvousKey& key, uint64_t id)
      : canceller(std::move(canceller)), key(key), id(id) {}

  void operator()() const {
    std::unique_ptr<RendezvousItem> found;
    {
      SpinLockHolder lock(&canceller->mu_);
      if (canceller->take_ != nullptr) found = canceller->take_(key, id);
    }
    if (found == nullptr) return;
    LocalRendezvous::Complete(std::move(found), LocalRendezvous::CancelledReceive(), Tensor(),
                              /*is_dead=*/false, "");
  }

  const std::shared_ptr<ReceiveCanceller> canceller;
  const RendezvousKey key;
  const uint64_t id;
};

void ReceiveCanceller::Detach() {
  SpinLockHolder lock(&mu_);
  take_ = nullptr;
}

CancellationToken::CallbackId ReceiveCanceller::Register(CancellationToken& token,
                                                         const RendezvousKey& key, uint64_t id) {
  return token.Register(
      [call = std::make_unique<CancelCallback>(shared_from_this(), key, id)] { (*call)(); });
}

}  // namespace ferry
