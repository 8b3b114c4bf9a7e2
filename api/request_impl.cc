// SPDX-License-Identifier: Apache-2.0
// How an operation ends: by its transfer, by cancellation, or while it waits for an address.
#include "api/request_impl.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "api/api_access.h"
#include "api/transfer_error.h"
#include "base/clock.h"
#include "base/nested_calls.h"
#include "base/text.h"

namespace ferry::v0 {
namespace {

thread_local int callbacks_here = 0;

}  // namespace

bool Request::Impl::IsInCallback() { return callbacks_here > 0; }

void Request::Impl::Call(Callback callback, absl::StatusOr<Tensor> result) {
  if (callback == nullptr) return;
  if (NestedCall::IsAtLimit()) {
    return NestedCall::Defer(
        [callback = std::move(callback), result = std::move(result)]() mutable {
          Call(std::move(callback), std::move(result));
        });
  }
  NestedCall call;
  ++callbacks_here;
  {
    // It may throw if it is called inside OnComplete.
    const absl::Cleanup leave = [] { --callbacks_here; };
    std::move(callback)(std::move(result));
  }
  call.End();
}

Request::Impl::Impl(absl::StatusOr<Tensor> result) : loop_(nullptr) {
  is_claimed_ = true;
  result_ = std::move(result);
  is_done_ = true;
}

Request::Impl::Impl(EventLoop& loop, int64_t step_id, TensorId id)
    : loop_(&loop), step_id_(step_id), id_(std::move(id)) {}

std::string Request::Impl::what() const {
  return absl::StrCat("step ", step_id_, " for ", ToString(id_));
}

void Request::Impl::Follow(const CancellationToken& token) {
  followed_ = ApiAccess::Unwrap(token);
  const auto id = followed_->Register([weak = weak_from_this()] {
    if (const auto self = weak.lock(); self != nullptr) self->Cancel(self->followed_->status());
  });
  if (id == ferry::CancellationToken::kNoCallback) return Cancel(followed_->status());
  followed_id_ = id;
  // It may have been cancelled, and completed, before the id was known.
  if (done()) followed_->Deregister(id);
}

bool Request::Impl::StartTransfer(std::function<std::string()> phase) {
  absl::MutexLock lock(&mu_);
  if (result_.has_value()) return false;
  is_transferring_ = true;
  phase_ = std::move(phase);
  return true;
}

void Request::Impl::LeaveTransfer(std::function<std::string()> phase) {
  {
    absl::MutexLock lock(&mu_);
    is_transferring_ = false;
    if (!result_.has_value()) phase_.swap(phase);
  }
  if (cancellation_.is_cancelled()) Complete(cancellation_.status());
}

void Request::Impl::Complete(absl::StatusOr<Tensor> result, absl::string_view path) {
  if (is_claimed_.exchange(true)) return;
  // Cancelled transfers end with a status of their own.
  if (absl::IsCancelled(result.status()) && cancellation_.is_cancelled()) {
    result = cancellation_.status();
  }
  if (const auto id = followed_id_.load(); id != ferry::CancellationToken::kNoCallback) {
    followed_->Deregister(id);
  }
  Callback callback;
  std::function<std::string()> phase;
  {
    absl::MutexLock lock(&mu_);
    callback = std::move(callback_);
    callback_ = nullptr;
    phase.swap(phase_);
    if (result.ok()) path_ = std::string(path);
    result_ = result;
    is_done_.store(true, std::memory_order_release);
    // Before the lock is released, which Wait takes last: the node may be destroyed once that has
    // returned.
    loop_->Wake();
  }
  Call(std::move(callback), std::move(result));
}

absl::StatusOr<Tensor> Request::Impl::Wait(absl::Duration timeout) {
  if (!done()) {
    // On other threads than the loop's it would wait as well for what only they can do.
    if (loop_->IsOnLoop() || IsInCallback()) {
      return absl::FailedPreconditionError(absl::StrCat("a callback must not wait for ", what(),
                                                        ": everything arrives on its thread. Use ",
                                                        "OnComplete there"));
    }
    if (!loop_->WaitUntil([this] { return done(); }, SteadyClock().Now() + timeout)) {
      std::function<std::string()> phase;
      {
        absl::MutexLock lock(&mu_);
        phase = phase_;
      }
      return TransferTimeout(
          ShortDuration(timeout), what(),
          phase == nullptr ? "the address of the sender is not known yet" : phase());
    }
  }
  absl::MutexLock lock(&mu_);
  return *result_;
}

bool Request::Impl::Poll() {
  if (done() || loop_->IsOnLoop() || IsInCallback()) return done();
  return loop_->WaitUntil([this] { return done(); }, absl::InfinitePast());
}

void Request::Impl::Cancel(const absl::Status& reason) {
  if (done()) return;
  const absl::Status why = reason.ok() ? absl::CancelledError("cancelled by the caller") : reason;
  cancellation_.Cancel(why);
  {
    absl::MutexLock lock(&mu_);
    if (is_transferring_) return;
  }
  Complete(why);
}

void Request::Impl::OnComplete(Callback callback) {
  absl::StatusOr<Tensor> result;
  {
    absl::MutexLock lock(&mu_);
    if (!result_.has_value()) {
      callback_ = std::move(callback);
      return;
    }
    result = *result_;
  }
  Call(std::move(callback), std::move(result));
}

std::string Request::Impl::path() const {
  absl::MutexLock lock(&mu_);
  return path_;
}

}  // namespace ferry::v0
