// SPDX-License-Identifier: Apache-2.0
// Request::Impl: the state of one operation, shared by its request and the transfer.
#ifndef FERRY_API_REQUEST_IMPL_H_
#define FERRY_API_REQUEST_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include <ferry/cancellation_token.h>
#include <ferry/request.h>
#include <ferry/step.h>
#include <ferry/tensor_id.h>

#include "api/api_access.h"
#include "base/cancellation_token.h"
#include "net/event_loop.h"

namespace ferry::v0 {

// Thread-safe. A receive is under way from its construction to Complete; before StartTransfer it
// waits for the sender's address. The node completes every operation before it is destroyed, so
// that a request that outlives it does not use the loop any more.
class Request::Impl final : public std::enable_shared_from_this<Request::Impl> {
 public:
  using Callback = absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&>;

  // Arguments for the completion of a transfer. Used by the thread that starts it, then by the one
  // that completes it, which takes it: the request may outlive the step and its node.
  struct Transfer {
    std::shared_ptr<ApiAccess::StepImpl> step;
    RecvOptions options;
    // A time of SteadyClock.
    absl::Time deadline;
  };

  // An operation that is done.
  explicit Impl(absl::StatusOr<Tensor> result);
  // One under way: the receive of `id` in that step.
  Impl(EventLoop& loop, int64_t step_id, TensorId id);

  // Cancels it when `token` is cancelled. Call once, before StartTransfer.
  void Follow(const CancellationToken& token) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends what is waiting for an address. Returns false if it is done, and must not be transferred;
  // otherwise the transfer must watch cancellation(), and call Complete.
  //   phase: how far the transfer has got; called while it is under way.
  bool StartTransfer(std::function<std::string()> phase) ABSL_LOCKS_EXCLUDED(mu_);
  // The transfer does not watch cancellation() any more: what is left cannot be called off, and its
  // Complete comes too late after a Cancel.
  //   phase: as for StartTransfer.
  void LeaveTransfer(std::function<std::string()> phase) ABSL_LOCKS_EXCLUDED(mu_);
  ferry::CancellationToken& cancellation() { return cancellation_; }
  std::optional<Transfer>& transfer() { return transfer_; }
  // Ends it; later calls have no effect.
  void Complete(absl::StatusOr<Tensor> result, absl::string_view path = "")
      ABSL_LOCKS_EXCLUDED(mu_);

  const TensorId& id() const { return id_; }
  // "step 3 for \"x\" from ...", for messages.
  std::string what() const;

  // True in a callback of OnComplete, on any thread.
  static bool IsInCallback();

  // The methods of Request.
  absl::StatusOr<Tensor> Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  bool done() const { return is_done_.load(std::memory_order_acquire); }
  bool Poll();
  void Cancel(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);
  void OnComplete(Callback callback) ABSL_LOCKS_EXCLUDED(mu_);
  std::string path() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // `callback` may be null.
  static void Call(Callback callback, absl::StatusOr<Tensor> result);

  // Null for an operation that was never under way.
  EventLoop* const loop_;
  const int64_t step_id_ = 0;
  const TensorId id_;
  ferry::CancellationToken cancellation_;
  std::optional<Transfer> transfer_;
  // Set before the operation starts.
  std::shared_ptr<ferry::CancellationToken> followed_;
  std::atomic<ferry::CancellationToken::CallbackId> followed_id_{
      ferry::CancellationToken::kNoCallback};
  // Set by the thread that completes it.
  std::atomic<bool> is_claimed_{false};
  // Set once `result_` is.
  std::atomic<bool> is_done_{false};

  mutable absl::Mutex mu_;
  bool is_transferring_ ABSL_GUARDED_BY(mu_) = false;
  std::function<std::string()> phase_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::StatusOr<Tensor>> result_ ABSL_GUARDED_BY(mu_);
  std::string path_ ABSL_GUARDED_BY(mu_);
  Callback callback_ ABSL_GUARDED_BY(mu_);
};

// For the other sources of api/, since it is private to Request.
using RequestImpl = ApiAccess::RequestImpl;

}  // namespace ferry::v0

#endif  // FERRY_API_REQUEST_IMPL_H_
