// SPDX-License-Identifier: Apache-2.0
// Runs the calls deferred because the stack was deep.
#include "rendezvous/depth_limited_call.h"

#include <deque>

#include "absl/functional/any_invocable.h"

namespace ferry::depth_limited_call_internal {
namespace {

std::deque<absl::AnyInvocable<void() &&>>& Deferred() {
  thread_local std::deque<absl::AnyInvocable<void() &&>> deferred;
  return deferred;
}

}  // namespace

void Defer(RecvCallback&& done, absl::Status&& status, Received&& received) {
  Deferred().push_back([done = std::move(done), status = std::move(status),
                        received = std::move(received)]() mutable {
    std::move(done)(std::move(status), std::move(received));
  });
  calls.are_deferred = true;
}

void CallDeferred() {
  auto& deferred = Deferred();
  // A callback may defer more.
  while (!deferred.empty()) {
    auto next = std::move(deferred.front());
    deferred.pop_front();
    std::move(next)();
  }
  calls.are_deferred = false;
}

}  // namespace ferry::depth_limited_call_internal
