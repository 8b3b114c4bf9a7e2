// SPDX-License-Identifier: Apache-2.0
// The queue of deferred calls.
#include "base/nested_calls.h"

#include <deque>
#include <utility>

namespace ferry {
namespace {

std::deque<absl::AnyInvocable<void() &&>>& Deferred() {
  thread_local std::deque<absl::AnyInvocable<void() &&>> deferred;
  return deferred;
}

}  // namespace

void NestedCall::Defer(absl::AnyInvocable<void() &&> call) {
  Deferred().push_back(std::move(call));
  state.are_deferred = true;
}

void NestedCall::CallDeferred() {
  auto& deferred = Deferred();
  // A callback may defer more.
  while (!deferred.empty()) {
    auto next = std::move(deferred.front());
    deferred.pop_front();
    std::move(next)();
  }
  state.are_deferred = false;
}

}  // namespace ferry
