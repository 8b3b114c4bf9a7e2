// SPDX-License-Identifier: Apache-2.0
// StoreEventQueue: passes store events to the thread that drives a bootstrap.
#ifndef FERRY_GPU_CLIQUE_STORE_EVENT_QUEUE_H_
#define FERRY_GPU_CLIQUE_STORE_EVENT_QUEUE_H_

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "gpu/clique/communicator.h"
#include "gpu/clique/communicator_bootstrap.h"

namespace ferry {

// Queues store events until a thread takes them.
class StoreEventQueue final : public CliqueListener {
 public:
  void Entry(std::string key, std::string value) override {
    Push([key = std::move(key), value = std::move(value)](CommunicatorBootstrap& plan) {
      plan.OnEntry(key, value);
    });
  }
  void Watching() override {
    Push([](CommunicatorBootstrap& plan) { plan.OnWatching(); });
  }
  void StoreFailed(absl::Status why) override {
    Push([why = std::move(why)](CommunicatorBootstrap& plan) { plan.OnStoreFailed(why); });
  }

  // From now on `heard` is called, from any thread and with no lock held, when an event is queued;
  // at once if one is already queued.
  void Listen(std::function<void()> heard) {
    bool has_letters = false;
    {
      absl::MutexLock lock(&mu_);
      heard_ = heard;
      has_letters = !letters_.empty();
    }
    if (has_letters) heard();
  }

  // Waits up to `timeout` if the queue is empty.
  void Deliver(CommunicatorBootstrap& plan, absl::Duration timeout) {
    std::deque<std::function<void(CommunicatorBootstrap&)>> letters;
    {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(
                               +[](StoreEventQueue* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
                                 return !self->letters_.empty();
                               },
                               this),
                           timeout);
      letters.swap(letters_);
    }
    for (const auto& letter : letters) letter(plan);
  }

 private:
  void Push(std::function<void(CommunicatorBootstrap&)> letter) {
    std::function<void()> heard;
    {
      absl::MutexLock lock(&mu_);
      letters_.push_back(std::move(letter));
      heard = heard_;
    }
    if (heard) heard();
  }

  absl::Mutex mu_;
  std::deque<std::function<void(CommunicatorBootstrap&)>> letters_ ABSL_GUARDED_BY(mu_);
  std::function<void()> heard_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_STORE_EVENT_QUEUE_H_
