// SPDX-License-Identifier: Apache-2.0
// StoreEventQueue: passes store events to the thread that drives a bootstrap.
#ifndef FERRY_GPU_COMMUNICATOR_STORE_EVENT_QUEUE_H_
#define FERRY_GPU_COMMUNICATOR_STORE_EVENT_QUEUE_H_

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "gpu/communicator/communicator.h"
#include "gpu/communicator/communicator_bootstrap.h"

namespace ferry {

// Queues store events until a thread takes them.
class StoreEventQueue final : public BootstrapStoreListener {
 public:
  using EntryCallback = std::function<void(absl::string_view key)>;

  // `on_entry`: is called for each entry at once, on the store's thread. May be null.
  explicit StoreEventQueue(EntryCallback on_entry) : on_entry_(std::move(on_entry)) {}

  void Entry(std::string key, std::string value) override {
    if (on_entry_) on_entry_(key);
    Push([key = std::move(key), value = std::move(value)](CommunicatorBootstrap& bootstrap) {
      bootstrap.OnEntry(key, value);
    });
  }
  void Watching() override {
    Push([](CommunicatorBootstrap& bootstrap) { bootstrap.OnWatching(); });
  }
  void StoreFailed(absl::Status why) override {
    Push(
        [why = std::move(why)](CommunicatorBootstrap& bootstrap) { bootstrap.OnStoreFailed(why); });
  }

  // From now on `on_event` is called, from any thread and with no lock held, when an event is
  // queued; at once if one is already queued.
  void Listen(std::function<void()> on_event) {
    bool has_events = false;
    {
      absl::MutexLock lock(&mu_);
      on_event_ = on_event;
      has_events = !events_.empty();
    }
    if (has_events) on_event();
  }

  // Waits up to `timeout` if the queue is empty.
  void Deliver(CommunicatorBootstrap& bootstrap, absl::Duration timeout) {
    std::deque<std::function<void(CommunicatorBootstrap&)>> events;
    {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(
                               +[](StoreEventQueue* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
                                 return !self->events_.empty();
                               },
                               this),
                           timeout);
      events.swap(events_);
    }
    for (const auto& event : events) event(bootstrap);
  }

 private:
  void Push(std::function<void(CommunicatorBootstrap&)> event) {
    std::function<void()> on_event;
    {
      absl::MutexLock lock(&mu_);
      events_.push_back(std::move(event));
      on_event = on_event_;
    }
    if (on_event) on_event();
  }

  const EntryCallback on_entry_;
  absl::Mutex mu_;
  std::deque<std::function<void(CommunicatorBootstrap&)>> events_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_event_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_STORE_EVENT_QUEUE_H_
