// SPDX-License-Identifier: Apache-2.0
// InvokeWithDepthLimit: callbacks that cause callbacks, in any number, on a stack of a fixed depth.
#ifndef FERRY_RENDEZVOUS_DEPTH_LIMITED_CALL_H_
#define FERRY_RENDEZVOUS_DEPTH_LIMITED_CALL_H_

#include <utility>

#include "absl/status/status.h"

#include "rendezvous/value.h"

namespace ferry {
namespace depth_limited_call_internal {

inline constexpr int kMaxDepth = 16;

struct Calls {
  // How many are under way on this thread, each from within the last.
  int depth;
  bool are_deferred;
};
// Without constructor and destructor, so that looking costs nothing.
inline thread_local constinit Calls calls = {};

// For when the outermost has returned.
void Defer(RecvCallback&& done, absl::Status&& status, Received&& received);
void CallDeferred();

}  // namespace depth_limited_call_internal

// Calls `done` now, unless that would be the 17th of such calls on this thread, each from within
// the last; then when the outermost of them has returned, in the order in which they came.
// Inline: it is on the way of every exchange.
inline void InvokeWithDepthLimit(RecvCallback&& done, absl::Status&& status, Received&& received) {
  using namespace depth_limited_call_internal;  // NOLINT(google-build-using-namespace)
  Calls& here = calls;
  if (here.depth >= kMaxDepth) {
    return Defer(std::move(done), std::move(status), std::move(received));
  }
  ++here.depth;
  std::move(done)(std::move(status), std::move(received));
  if (here.are_deferred && here.depth == 1) CallDeferred();
  --here.depth;
}

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_DEPTH_LIMITED_CALL_H_
