// SPDX-License-Identifier: Apache-2.0
// The public Step is a shared internal one.
#include <ferry/step.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "api/api_access.h"
#include "api/public_terms.h"
#include "api/step_impl.h"

namespace ferry::v0 {
namespace {

// The result of a call inside a callback, which did not wait.
absl::Status WithoutWaiting(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("inside a callback, which must not wait: ", status.message()));
}

}  // namespace

Step::Step(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

int64_t Step::id() const { return impl_->inner().id(); }

Request Step::Send(const TensorId& id, Tensor tensor, SendOptions options) {
  absl::Status status = impl_->Send(id, tensor, options);
  absl::StatusOr<Tensor> result = std::move(tensor);
  if (!status.ok()) result = std::move(status);
  return ApiAccess::Wrap(std::make_shared<RequestImpl>(std::move(result)));
}

Request Step::Recv(const TensorId& id, RecvOptions options) {
  return ApiAccess::Wrap(impl_->Recv(id, std::move(options)));
}

std::vector<Request> Step::SendMany(absl::Span<const SendOperation> operations) {
  std::vector<Request> requests;
  requests.reserve(operations.size());
  std::vector<absl::Status> statuses = impl_->SendMany(operations);
  for (size_t i = 0; i < operations.size(); ++i) {
    absl::StatusOr<Tensor> result = operations[i].tensor;
    if (!statuses[i].ok()) result = std::move(statuses[i]);
    requests.push_back(ApiAccess::Wrap(std::make_shared<RequestImpl>(std::move(result))));
  }
  return requests;
}

std::vector<Request> Step::RecvMany(absl::Span<const RecvOperation> operations) {
  std::vector<Request> requests;
  requests.reserve(operations.size());
  for (std::shared_ptr<RequestImpl>& each : impl_->RecvMany(operations)) {
    requests.push_back(ApiAccess::Wrap(std::move(each)));
  }
  return requests;
}

absl::Status Step::Flush(absl::Duration timeout) {
  if (!RequestImpl::IsInCallback()) return InPublicTerms(impl_->inner().Flush(timeout));
  return WithoutWaiting(InPublicTerms(impl_->inner().Flush(absl::ZeroDuration())));
}

absl::Status Step::Close(absl::Duration timeout) {
  if (!RequestImpl::IsInCallback()) return impl_->Close(timeout);
  return WithoutWaiting(impl_->Close(absl::ZeroDuration()));
}

void Step::Abort(const absl::Status& reason) {
  impl_->Abort(reason.ok() ? absl::CancelledError("aborted by the caller") : reason);
}

Step ApiAccess::Wrap(std::shared_ptr<StepImpl> step) { return Step(std::move(step)); }

}  // namespace ferry::v0
