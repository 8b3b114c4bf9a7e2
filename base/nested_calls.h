// SPDX-License-Identifier: Apache-2.0
// NestedCall: callbacks that cause callbacks, on a stack of limited depth.
#ifndef FERRY_BASE_NESTED_CALLS_H_
#define FERRY_BASE_NESTED_CALLS_H_

#include "absl/functional/any_invocable.h"

namespace ferry {

// A call of a program's callback, while it exists. Callbacks may complete further operations, whose
// callbacks would be called within them: from the 17th nested one on they are deferred instead
// until the outermost one has returned, so that a chain of any length fits on the stack.
//
//   if (NestedCall::IsAtLimit()) return NestedCall::Defer([...] { callback(...); });
//   NestedCall call;
//   callback(...);
//   call.End();
//
// Everything is of the calling thread.
class NestedCall final {
 public:
  static bool IsAtLimit() { return state.depth >= kMaxDepth; }
  // Calls `call` once the outermost NestedCall of this thread ends, in the order of the Defers. As
  // if it were nested there. REQUIRES: there is one.
  static void Defer(absl::AnyInvocable<void() &&> call);

  NestedCall() { ++state.depth; }
  // Also if the callback has thrown; what was deferred is called by the next outermost call then.
  ~NestedCall() { --state.depth; }
  NestedCall(const NestedCall&) = delete;
  NestedCall& operator=(const NestedCall&) = delete;

  // The callback has returned.
  void End() {
    if (state.are_deferred && state.depth == 1) CallDeferred();
  }

 private:
  static constexpr int kMaxDepth = 16;

  struct State {
    int depth;
    bool are_deferred;
  };

  static void CallDeferred();

  // No constructor or destructor, so that reading it costs nothing.
  static inline thread_local constinit State state = {};
};

}  // namespace ferry

#endif  // FERRY_BASE_NESTED_CALLS_H_
