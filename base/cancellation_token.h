// SPDX-License-Identifier: Apache-2.0
// CancellationToken: lets somebody call off operations of which he knows nothing, and say why.
#ifndef FERRY_BASE_CANCELLATION_TOKEN_H_
#define FERRY_BASE_CANCELLATION_TOKEN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

#include "base/spin_lock.h"

namespace ferry {

// Thread-safe. Outlives the operations that watch it, or poll it; it has no deadline of its own.
class CancellationToken final {
 public:
  using CallbackId = uint64_t;
  static constexpr CallbackId kNoCallback = 0;

  CancellationToken() = default;
  CancellationToken(const CancellationToken&) = delete;
  CancellationToken& operator=(const CancellationToken&) = delete;

  // Cancels, once and for all: calls what is registered, on this thread, with no lock held. The
  // first reason counts; false: there was one before, or `why` is OK, which is none.
  bool Cancel(const absl::Status& why = absl::CancelledError()) ABSL_LOCKS_EXCLUDED(mu_);
  // Cheap enough to be polled.
  bool is_cancelled() const { return is_cancelled_.load(std::memory_order_acquire); }
  // Why, or OK as long as nobody has cancelled.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

  // `on_cancel` will be called by Cancel, at most once. Returns kNoCallback, and does not keep it,
  // if that has happened already.
  CallbackId Register(absl::AnyInvocable<void() &&> on_cancel) ABSL_LOCKS_EXCLUDED(mu_);
  // True: it will not be called. False: it has been, or is being called.
  bool Deregister(CallbackId callback) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of registered operations; for tests that none stays registered.
  size_t registered_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::atomic<bool> is_cancelled_ = false;
  mutable SpinLock mu_;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  CallbackId last_id_ ABSL_GUARDED_BY(mu_) = kNoCallback;
  // Most are watched by one operation, which then needs no table.
  CallbackId only_id_ ABSL_GUARDED_BY(mu_) = kNoCallback;
  absl::AnyInvocable<void() &&> only_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<CallbackId, absl::AnyInvocable<void() &&>> others_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_BASE_CANCELLATION_TOKEN_H_
