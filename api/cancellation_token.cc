// SPDX-License-Identifier: Apache-2.0
// The public CancellationToken is a shared internal one.
#include <ferry/cancellation_token.h>

#include <memory>

#include "api/api_access.h"
#include "base/cancellation_token.h"

namespace ferry::v0 {

class CancellationToken::Impl final {
 public:
  ferry::CancellationToken token;
};

CancellationToken::CancellationToken() : impl_(std::make_shared<Impl>()) {}

bool CancellationToken::Cancel(const absl::Status& reason) { return impl_->token.Cancel(reason); }
bool CancellationToken::is_cancelled() const { return impl_->token.is_cancelled(); }
absl::Status CancellationToken::status() const { return impl_->token.status(); }

std::shared_ptr<ferry::CancellationToken> ApiAccess::Unwrap(const CancellationToken& token) {
  return {token.impl_, &token.impl_->token};
}

}  // namespace ferry::v0
