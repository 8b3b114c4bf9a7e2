// SPDX-License-Identifier: Apache-2.0
// RecvBlocking: waits on the caller's thread for one asynchronous receive.
#ifndef FERRY_RENDEZVOUS_BLOCKING_RECV_H_
#define FERRY_RENDEZVOUS_BLOCKING_RECV_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "rendezvous/value.h"

namespace ferry {

class EventLoop;

// Calls `start`, which begins a receive with the arguments that it is given, and waits until that
// is over or `timeout` has passed; then the receive is cancelled, and nothing of it is under way
// when this returns. The caller's own cancellation in `args` counts as ever.
//   loop: is driven meanwhile; null: nothing is, and the thread sleeps. REQUIRES: not on the loop.
//   describe: what was waited for, behind "waited 1s"; called once the time is over and before the
//   receive is cancelled.
//   Errors: DEADLINE_EXCEEDED with `describe`; else as the receive says.
absl::StatusOr<Received> RecvBlocking(RecvArgs args, absl::Duration timeout, EventLoop* loop,
                                      absl::FunctionRef<void(RecvArgs, RecvCallback)> start,
                                      absl::FunctionRef<std::string()> describe);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_BLOCKING_RECV_H_
