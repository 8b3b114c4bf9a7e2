// SPDX-License-Identifier: Apache-2.0
// The public ExternalNcclScope owns an internal one.
#include <ferry/external_nccl_scope.h>

#include <memory>
#include <utility>

#include "api/api_access.h"
#include "gpu/external_nccl_scope.h"

namespace ferry::v0 {

class ExternalNcclScope::Impl final {
 public:
  std::unique_ptr<ferry::ExternalNcclScope> inner;
};

ExternalNcclScope::ExternalNcclScope(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExternalNcclScope::~ExternalNcclScope() = default;

absl::Status ExternalNcclScope::End(CUstream_st* stream) { return impl_->inner->End(stream); }

std::unique_ptr<ExternalNcclScope> ApiAccess::Wrap(
    std::unique_ptr<ferry::ExternalNcclScope> scope) {
  auto impl = std::make_unique<ExternalNcclScope::Impl>();
  impl->inner = std::move(scope);
  return std::unique_ptr<ExternalNcclScope>(new ExternalNcclScope(std::move(impl)));
}

}  // namespace ferry::v0
