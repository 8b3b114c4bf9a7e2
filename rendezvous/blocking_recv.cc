// SPDX-License-Identifier: Apache-2.0
// State shared by a blocked thread and the delivery that it waits for.
#include "rendezvous/blocking_recv.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "base/cancellation_token.h"
#include "base/clock.h"
#include "base/text.h"
#include "net/event_loop.h"

namespace ferry {
namespace {

// Shared, because the delivery may still be using it after the waiter has returned.
struct Waiter {
  // For a waiter that leads a loop.
  std::atomic<bool> is_done{false};
  // For a waiter that sleeps.
  absl::Notification done;
  absl::Status status;
  Received received;
  // Ends this receive; the caller's cancellation is forwarded to it.
  CancellationToken cancellation;
};

// Returns false if the deadline has passed.
bool WaitUntil(Waiter& waiter, EventLoop* loop, absl::Time deadline) {
  if (loop == nullptr) {
    return waiter.done.WaitForNotificationWithTimeout(deadline - SteadyClock().Now());
  }
  return loop->WaitUntil([&waiter] { return waiter.is_done.load(std::memory_order_acquire); },
                         deadline);
}

}  // namespace

absl::StatusOr<Received> RecvBlocking(RecvArgs args, absl::Duration timeout, EventLoop* loop,
                                      absl::FunctionRef<void(RecvArgs, RecvCallback)> start,
                                      absl::FunctionRef<std::string()> describe) {
  const absl::Time deadline = SteadyClock().Now() + timeout;
  const auto waiter = std::make_shared<Waiter>();
  CancellationToken* const outer = args.cancellation;
  CancellationToken::CallbackId callback = CancellationToken::kNoCallback;
  if (outer != nullptr) {
    callback = outer->Register([waiter] { waiter->cancellation.Cancel(); });
    if (callback == CancellationToken::kNoCallback) waiter->cancellation.Cancel();
  }
  args.cancellation = &waiter->cancellation;
  start(std::move(args), [waiter, loop](absl::Status status, Received received) {
    waiter->status = std::move(status);
    waiter->received = std::move(received);
    if (loop == nullptr) return waiter->done.Notify();
    waiter->is_done.store(true, std::memory_order_release);
    loop->Wake();
  });
  std::string awaited;
  const bool is_in_time = WaitUntil(*waiter, loop, deadline);
  if (!is_in_time) {
    awaited = describe();
    waiter->cancellation.Cancel();
    // Ended by the cancellation, or by a concurrent delivery.
    WaitUntil(*waiter, loop, absl::InfiniteFuture());
  }
  if (callback != CancellationToken::kNoCallback) outer->Deregister(callback);
  if (waiter->status.ok()) {
    waiter->received.recv_args.cancellation = outer;
    return std::move(waiter->received);
  }
  if (!is_in_time && absl::IsCancelled(waiter->status)) {
    return absl::DeadlineExceededError(absl::StrCat("waited ", ShortDuration(timeout), awaited));
  }
  return waiter->status;
}

}  // namespace ferry
