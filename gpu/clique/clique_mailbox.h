// SPDX-License-Identifier: Apache-2.0
// CliqueMailbox: brings what the store says to the thread that drives a plan.
#ifndef FERRY_GPU_CLIQUE_CLIQUE_MAILBOX_H_
#define FERRY_GPU_CLIQUE_CLIQUE_MAILBOX_H_

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "gpu/clique/clique_plan.h"
#include "gpu/clique/communicator.h"

namespace ferry {

// What the store has said, until a thread asks.
class CliqueMailbox final : public CliqueListener {
 public:
  void Entry(std::string key, std::string value) override {
    Push([key = std::move(key), value = std::move(value)](CliquePlan& plan) {
      plan.OnEntry(key, value);
    });
  }
  void Watching() override {
    Push([](CliquePlan& plan) { plan.OnWatching(); });
  }
  void StoreFailed(absl::Status why) override {
    Push([why = std::move(why)](CliquePlan& plan) { plan.OnStoreFailed(why); });
  }

  // From now on `heard` is called, from any thread and with no lock held, when there is something;
  // at once if there is already.
  void Listen(std::function<void()> heard) {
    bool has_letters = false;
    {
      absl::MutexLock lock(&mu_);
      heard_ = heard;
      has_letters = !letters_.empty();
    }
    if (has_letters) heard();
  }

  // Waits for `patience` if there is nothing.
  void Deliver(CliquePlan& plan, absl::Duration patience) {
    std::deque<std::function<void(CliquePlan&)>> letters;
    {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(
                               +[](CliqueMailbox* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
                                 return !self->letters_.empty();
                               },
                               this),
                           patience);
      letters.swap(letters_);
    }
    for (const auto& letter : letters) letter(plan);
  }

 private:
  void Push(std::function<void(CliquePlan&)> letter) {
    std::function<void()> heard;
    {
      absl::MutexLock lock(&mu_);
      letters_.push_back(std::move(letter));
      heard = heard_;
    }
    if (heard) heard();
  }

  absl::Mutex mu_;
  std::deque<std::function<void(CliquePlan&)>> letters_ ABSL_GUARDED_BY(mu_);
  std::function<void()> heard_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_CLIQUE_MAILBOX_H_
