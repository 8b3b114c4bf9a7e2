// SPDX-License-Identifier: Apache-2.0
// CancellationToken: lets a caller cancel operations it does not know, with a reason.
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

// Thread-safe. Outlives the operations that watch or poll it. Has no deadline of its own.
class CancellationToken final {
 public:
  using CallbackId = uint64_t;
  static constexpr CallbackId kNoCallback = 0;

  CancellationToken() = default;
  CancellationToken(const CancellationToken&) = delete;
  CancellationToken& operator=(const CancellationToken&) = delete;

  // Cancels permanently: calls the registered callbacks on this thread, with no lock held. The
  // first reason counts. Returns false if already cancelled, or if `why` is OK.
  bool Cancel(const absl::Status& why = absl::CancelledError()) ABSL_LOCKS_EXCLUDED(mu_);
  // Cheap enough to be polled.
  bool is_cancelled() const { return is_cancelled_.load(std::memory_order_acquire); }
  // The reason, or OK while not cancelled.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

  // Registers `on_cancel`, which Cancel calls at most once. Returns kNoCallback, without
  // registering it, if already cancelled.
  CallbackId Register(absl::AnyInvocable<void() &&> on_cancel) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if the callback will not be called; false if it has been, or is being called.
  bool Deregister(CallbackId callback) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of registered operations; lets tests check that none leaks.
  size_t registered_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::atomic<bool> is_cancelled_ = false;
  mutable SpinLock mu_;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  CallbackId last_id_ ABSL_GUARDED_BY(mu_) = kNoCallback;
  // Most tokens are watched by one operation, which then needs no table.
  CallbackId only_id_ ABSL_GUARDED_BY(mu_) = kNoCallback;
  absl::AnyInvocable<void() &&> only_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<CallbackId, absl::AnyInvocable<void() &&>> others_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_BASE_CANCELLATION_TOKEN_H_
