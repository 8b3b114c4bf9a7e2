// SPDX-License-Identifier: Apache-2.0
// The list of those who watch.
#include "rendezvous/cancellation.h"

#include <utility>

namespace ferry {

void Cancellation::Cancel() {
  absl::flat_hash_map<Token, absl::AnyInvocable<void() &&>> callbacks;
  {
    SpinLockHolder lock(&mu_);
    is_cancelled_ = true;
    callbacks.swap(callbacks_);
  }
  for (auto& [token, callback] : callbacks) std::move(callback)();
}

bool Cancellation::is_cancelled() const {
  SpinLockHolder lock(&mu_);
  return is_cancelled_;
}

Cancellation::Token Cancellation::Register(absl::AnyInvocable<void() &&> on_cancel) {
  SpinLockHolder lock(&mu_);
  if (is_cancelled_) return kNoToken;
  callbacks_.emplace(++last_token_, std::move(on_cancel));
  return last_token_;
}

bool Cancellation::Deregister(Token token) {
  absl::AnyInvocable<void() &&> dropped;
  SpinLockHolder lock(&mu_);
  const auto found = callbacks_.find(token);
  if (found == callbacks_.end()) return false;
  dropped = std::move(found->second);
  callbacks_.erase(found);
  return true;
}

}  // namespace ferry
