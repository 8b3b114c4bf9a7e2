// SPDX-License-Identifier: Apache-2.0
// RecvBlocking: blocks the caller's thread on one asynchronous receive.
#ifndef FERRY_RENDEZVOUS_BLOCKING_RECV_H_
#define FERRY_RENDEZVOUS_BLOCKING_RECV_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "rendezvous/value.h"

namespace ferry {

class EventLoop;

// Calls `start`, which starts a receive with the arguments that it is given, and blocks until that
// is over or `timeout` has passed; then the receive is cancelled, and none of it is pending when
// this returns. The caller's own cancellation in `args` works as usual.
//   loop: led meanwhile; null: the thread sleeps. REQUIRES: not on the loop.
//   describe: what was waited for, to follow "waited 1s"; called after the timeout, and before the
//   receive is cancelled.
//   Errors: DEADLINE_EXCEEDED with `describe`; else those of the receive.
absl::StatusOr<Received> RecvBlocking(RecvArgs args, absl::Duration timeout, EventLoop* loop,
                                      absl::FunctionRef<void(RecvArgs, RecvCallback)> start,
                                      absl::FunctionRef<std::string()> describe);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_BLOCKING_RECV_H_
