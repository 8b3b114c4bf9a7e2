// SPDX-License-Identifier: Apache-2.0
// The list of those who watch.
#include "rendezvous/cancellation.h"

#include <utility>

namespace ferry {

void Cancellation::Cancel() {
  absl::AnyInvocable<void() &&> only;
  absl::flat_hash_map<Token, absl::AnyInvocable<void() &&>> others;
  {
    SpinLockHolder lock(&mu_);
    is_cancelled_ = true;
    if (std::exchange(only_token_, kNoToken) != kNoToken) only = std::move(only_);
    others.swap(others_);
  }
  if (only) std::move(only)();
  for (auto& [token, callback] : others) std::move(callback)();
}

bool Cancellation::is_cancelled() const {
  SpinLockHolder lock(&mu_);
  return is_cancelled_;
}

Cancellation::Token Cancellation::Register(absl::AnyInvocable<void() &&> on_cancel) {
  SpinLockHolder lock(&mu_);
  if (is_cancelled_) return kNoToken;
  ++last_token_;
  if (only_token_ == kNoToken) {
    only_token_ = last_token_;
    only_ = std::move(on_cancel);
  } else {
    others_.emplace(last_token_, std::move(on_cancel));
  }
  return last_token_;
}

bool Cancellation::Deregister(Token token) {
  absl::AnyInvocable<void() &&> dropped;
  SpinLockHolder lock(&mu_);
  if (token == kNoToken) return false;
  if (token == only_token_) {
    only_token_ = kNoToken;
    dropped = std::move(only_);
    return true;
  }
  const auto found = others_.find(token);
  if (found == others_.end()) return false;
  dropped = std::move(found->second);
  others_.erase(found);
  return true;
}

size_t Cancellation::registered_count() const {
  SpinLockHolder lock(&mu_);
  return others_.size() + (only_token_ == kNoToken ? 0 : 1);
}

}  // namespace ferry
