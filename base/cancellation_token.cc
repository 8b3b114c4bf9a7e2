// SPDX-License-Identifier: Apache-2.0
// The cancellation reason and the list of registered callbacks.
#include "base/cancellation_token.h"

#include <utility>

namespace ferry {

bool CancellationToken::Cancel(const absl::Status& why) {
  if (why.ok()) return false;
  absl::AnyInvocable<void() &&> only;
  absl::flat_hash_map<CallbackId, absl::AnyInvocable<void() &&>> others;
  {
    SpinLockHolder lock(&mu_);
    if (!why_.ok()) return false;
    why_ = why;
    is_cancelled_.store(true, std::memory_order_release);
    if (std::exchange(only_id_, kNoCallback) != kNoCallback) only = std::move(only_);
    others.swap(others_);
  }
  if (only) std::move(only)();
  for (auto& [id, callback] : others) std::move(callback)();
  return true;
}

absl::Status CancellationToken::status() const {
  SpinLockHolder lock(&mu_);
  return why_;
}

CancellationToken::CallbackId CancellationToken::Register(absl::AnyInvocable<void() &&> on_cancel) {
  SpinLockHolder lock(&mu_);
  if (!why_.ok()) return kNoCallback;
  ++last_id_;
  if (only_id_ == kNoCallback) {
    only_id_ = last_id_;
    only_ = std::move(on_cancel);
  } else {
    others_.emplace(last_id_, std::move(on_cancel));
  }
  return last_id_;
}

bool CancellationToken::Deregister(CallbackId callback) {
  absl::AnyInvocable<void() &&> dropped;
  SpinLockHolder lock(&mu_);
  if (callback == kNoCallback) return false;
  if (callback == only_id_) {
    only_id_ = kNoCallback;
    dropped = std::move(only_);
    return true;
  }
  const auto found = others_.find(callback);
  if (found == others_.end()) return false;
  dropped = std::move(found->second);
  others_.erase(found);
  return true;
}

size_t CancellationToken::registered_count() const {
  SpinLockHolder lock(&mu_);
  return others_.size() + (only_id_ == kNoCallback ? 0 : 1);
}

}  // namespace ferry
