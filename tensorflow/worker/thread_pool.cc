// SPDX-License-Identifier: Apache-2.0
// One queue shared by all threads.
#include "tensorflow/worker/thread_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry::worker {

ThreadPool::ThreadPool(const std::string& name, int thread_count) {
  FERRY_CHECK(thread_count > 0);
  for (int i = 0; i < thread_count; ++i) {
    threads_.push_back(std::make_unique<Thread>(absl::StrCat(name, i), [this] { Loop(); }));
  }
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mu_);
    is_stopping_ = true;
    has_work_.SignalAll();
  }
  threads_.clear();
}

void ThreadPool::Run(absl::AnyInvocable<void() &&> function) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(function));
  if (idle_ > 0) has_work_.Signal();
}

void ThreadPool::Loop() {
  for (;;) {
    absl::AnyInvocable<void() &&> function;
    {
      absl::MutexLock lock(&mu_);
      while (queue_.empty()) {
        // Running functions may still add to the queue; their threads will drain it.
        if (is_stopping_) return;
        ++idle_;
        has_work_.Wait(&mu_);
        --idle_;
      }
      function = std::move(queue_.front());
      queue_.pop_front();
    }
    std::move(function)();
  }
}

}  // namespace ferry::worker
