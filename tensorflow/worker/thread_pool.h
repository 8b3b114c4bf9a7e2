// SPDX-License-Identifier: Apache-2.0
// ThreadPool: threads for functions that take long but do not block.
#ifndef FERRY_TENSORFLOW_WORKER_THREAD_POOL_H_
#define FERRY_TENSORFLOW_WORKER_THREAD_POOL_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

#include "base/thread.h"

namespace ferry::worker {

// Thread-safe. Functions start in FIFO order.
class ThreadPool final {
 public:
  //   name: prefix of the threads' names, which are numbered; at most 12 characters. thread_count:
  //   at least 1.
  ThreadPool(const std::string& name, int thread_count);
  // Runs all queued functions and joins the threads. Must not be called on one of them.
  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs the function on one of the threads. Functions may add others, even during destruction.
  void Run(absl::AnyInvocable<void() &&> function) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  absl::CondVar has_work_;
  std::deque<absl::AnyInvocable<void() &&>> queue_ ABSL_GUARDED_BY(mu_);
  int idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Declared last, so that the threads are joined first.
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_THREAD_POOL_H_
