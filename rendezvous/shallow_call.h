// SPDX-License-Identifier: Apache-2.0
// CallShallowly: callbacks that cause callbacks, in any number, on a stack of a fixed depth.
#ifndef FERRY_RENDEZVOUS_SHALLOW_CALL_H_
#define FERRY_RENDEZVOUS_SHALLOW_CALL_H_

#include <deque>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

#include "rendezvous/value.h"

namespace ferry {

// Calls `done` now, unless that would be the 17th of such calls on this thread, each from within
// the last; then when the outermost of them has returned, in the order in which they came.
// Inline: it is on the way of every exchange.
inline void CallShallowly(RecvCallback&& done, absl::Status&& status, Received&& received) {
  constexpr int kMaxDepth = 16;
  struct Callbacks {
    int depth = 0;
    std::deque<absl::AnyInvocable<void() &&>> deferred;
  };
  thread_local Callbacks callbacks;
  if (callbacks.depth >= kMaxDepth) {
    callbacks.deferred.push_back([done = std::move(done), status = std::move(status),
                                  received = std::move(received)]() mutable {
      std::move(done)(std::move(status), std::move(received));
    });
    return;
  }
  ++callbacks.depth;
  std::move(done)(std::move(status), std::move(received));
  while (callbacks.depth == 1 && !callbacks.deferred.empty()) {
    auto next = std::move(callbacks.deferred.front());
    callbacks.deferred.pop_front();
    std::move(next)();
  }
  --callbacks.depth;
}

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_SHALLOW_CALL_H_
