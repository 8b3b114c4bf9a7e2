// SPDX-License-Identifier: Apache-2.0
// The public Request owns its state, and cancels what is under way when it is destroyed.
#include <ferry/request.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "api/api_access.h"
#include "api/request_impl.h"
#include "base/clock.h"

namespace ferry::v0 {

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  if (impl_ != nullptr) Cancel();
  impl_ = std::move(other.impl_);
  return *this;
}

Request::~Request() {
  if (impl_ != nullptr && !impl_->done()) {
    impl_->Cancel(absl::CancelledError("its request was destroyed"));
  }
}

absl::StatusOr<Tensor> Request::Wait(absl::Duration timeout) {
  if (impl_ == nullptr) return absl::FailedPreconditionError("the request has no operation");
  return impl_->Wait(timeout);
}

bool Request::done() const { return impl_ == nullptr || impl_->done(); }

bool Request::Poll() { return impl_ == nullptr || impl_->Poll(); }

void Request::Cancel(const absl::Status& reason) {
  if (impl_ != nullptr) impl_->Cancel(reason);
}

void Request::OnComplete(absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&> callback) && {
  const std::shared_ptr<Impl> impl = std::move(impl_);
  if (impl != nullptr) return impl->OnComplete(std::move(callback));
  if (callback == nullptr) return;
  std::move(callback)(absl::FailedPreconditionError("the request has no operation"));
}

void Request::Notify(absl::AnyInvocable<void() &&> on_done) {
  if (on_done == nullptr) return;
  if (impl_ == nullptr) return std::move(on_done)();
  impl_->OnComplete([on_done = std::move(on_done)](const absl::StatusOr<Tensor>&) mutable {
    std::move(on_done)();
  });
}

std::string Request::path() const { return impl_ == nullptr ? std::string() : impl_->path(); }

absl::Status WaitAll(absl::Span<Request> requests, absl::Duration timeout) {
  const absl::Time deadline = SteadyClock().Now() + timeout;
  absl::Status status;
  for (Request& request : requests) {
    status.Update(
        request.Wait(std::max(deadline - SteadyClock().Now(), absl::ZeroDuration())).status());
  }
  return status;
}

Request ApiAccess::Wrap(std::shared_ptr<RequestImpl> request) {
  Request result;
  result.impl_ = std::move(request);
  return result;
}

}  // namespace ferry::v0
