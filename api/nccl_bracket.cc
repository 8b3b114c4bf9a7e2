// SPDX-License-Identifier: Apache-2.0
// The public NcclBracket owns an internal one.
#include <ferry/nccl_bracket.h>

#include <memory>
#include <utility>

#include "api/api_access.h"
#include "gpu/nccl_bracket.h"

namespace ferry::v0 {

class NcclBracket::Impl final {
 public:
  std::unique_ptr<ferry::NcclBracket> inner;
};

NcclBracket::NcclBracket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclBracket::~NcclBracket() = default;

absl::Status NcclBracket::Close(CUstream_st* stream) { return impl_->inner->Close(stream); }

std::unique_ptr<NcclBracket> ApiAccess::Wrap(std::unique_ptr<ferry::NcclBracket> bracket) {
  auto impl = std::make_unique<NcclBracket::Impl>();
  impl->inner = std::move(bracket);
  return std::unique_ptr<NcclBracket>(new NcclBracket(std::move(impl)));
}

}  // namespace ferry::v0
