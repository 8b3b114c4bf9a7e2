// SPDX-License-Identifier: Apache-2.0
// WorkPool: a few threads for what takes long to compute.
#ifndef FERRY_TENSORFLOW_MASTER_WORK_POOL_H_
#define FERRY_TENSORFLOW_MASTER_WORK_POOL_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

#include "base/thread.h"

namespace ferry::master {

// Where work goes that would hold up others: graphs are read, placed and cut there.
using RunWork = std::function<void(absl::AnyInvocable<void() &&>)>;

// Runs work in the order in which it comes. It must not wait for other work. Thread-safe.
class WorkPool final {
 public:
  //   name: of the threads, which are numbered; at most 12 characters.
  WorkPool(const std::string& name, int threads);
  // As Stop.
  ~WorkPool() { Stop(); }

  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Nothing is done with it after Stop.
  void Add(absl::AnyInvocable<void() &&> work) ABSL_LOCKS_EXCLUDED(mu_);
  // When what has been added is done.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<absl::AnyInvocable<void() &&>> work_ ABSL_GUARDED_BY(mu_);
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_WORK_POOL_H_
