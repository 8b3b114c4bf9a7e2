// SPDX-License-Identifier: Apache-2.0
// One queue shared by all threads.
#include "tensorflow/master/work_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::master {

WorkPool::WorkPool(const std::string& name, int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.push_back(std::make_unique<Thread>(absl::StrCat(name, i), [this] { Run(); }));
  }
}

void WorkPool::Stop() {
  {
    absl::MutexLock lock(&mu_);
    is_closing_ = true;
  }
  for (const auto& thread : threads_) thread->Join();
}

void WorkPool::Add(absl::AnyInvocable<void() &&> work) {
  absl::MutexLock lock(&mu_);
  if (!is_closing_) work_.push_back(std::move(work));
}

void WorkPool::Run() {
  const auto has_something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_closing_ || !work_.empty();
  };
  while (true) {
    absl::AnyInvocable<void() &&> work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_something));
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    std::move(work)();
  }
}

}  // namespace ferry::master
