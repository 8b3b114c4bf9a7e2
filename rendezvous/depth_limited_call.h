// SPDX-License-Identifier: Apache-2.0
// InvokeWithDepthLimit: any number of callbacks that cause callbacks, on a stack of limited depth.
#ifndef FERRY_RENDEZVOUS_DEPTH_LIMITED_CALL_H_
#define FERRY_RENDEZVOUS_DEPTH_LIMITED_CALL_H_

#include <utility>

#include "absl/status/status.h"

#include "rendezvous/value.h"

namespace ferry {
namespace depth_limited_call_internal {

inline constexpr int kMaxDepth = 16;

struct Calls {
  // Number of nested calls on this thread.
  int depth;
  bool are_deferred;
};
// No constructor or destructor, so that reading it costs nothing.
inline thread_local constinit Calls calls = {};

// Queues the call until the outermost one has returned.
void Defer(RecvCallback&& done, absl::Status&& status, Received&& received);
void CallDeferred();

}  // namespace depth_limited_call_internal

// Calls `done` now, unless that would be the 17th nested call on this thread; then after the
// outermost of them has returned, in order of the calls. Inline, since every transfer passes here.
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
