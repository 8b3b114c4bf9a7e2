// SPDX-License-Identifier: Apache-2.0
// Cancellation: lets somebody call off operations of which he knows nothing.
#ifndef FERRY_RENDEZVOUS_CANCELLATION_H_
#define FERRY_RENDEZVOUS_CANCELLATION_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"

#include "base/spin_lock.h"

namespace ferry {

// Thread-safe. Owned by whoever may cancel; outlives the operations that watch it.
class Cancellation final {
 public:
  using Token = uint64_t;
  static constexpr Token kNoToken = 0;

  // Cancels, once and for all: calls what is registered, on this thread, with no lock held.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_cancelled() const ABSL_LOCKS_EXCLUDED(mu_);

  // `on_cancel` will be called by Cancel, at most once. Returns kNoToken, and does not keep it, if
  // that has happened already.
  Token Register(absl::AnyInvocable<void() &&> on_cancel) ABSL_LOCKS_EXCLUDED(mu_);
  // True: it will not be called. False: it has been, or is being called.
  bool Deregister(Token token) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of registered operations; for tests that none stays registered.
  size_t registered_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable SpinLock mu_;
  bool is_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  Token last_token_ ABSL_GUARDED_BY(mu_) = kNoToken;
  // Most are watched by one operation, which then needs no table.
  Token only_token_ ABSL_GUARDED_BY(mu_) = kNoToken;
  absl::AnyInvocable<void() &&> only_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Token, absl::AnyInvocable<void() &&>> others_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_CANCELLATION_H_
