// SPDX-License-Identifier: Apache-2.0
// WorkPool: a few threads for long computations.
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

// Runs work that would block other calls: graphs are read, placed and partitioned there.
using RunWork = std::function<void(absl::AnyInvocable<void() &&>)>;

// Runs work in FIFO order. Work must not wait for other work. Thread-safe.
class WorkPool final {
 public:
  //   name: prefix of the threads' names, which are numbered; at most 12 characters.
  WorkPool(const std::string& name, int threads);
  // Calls Stop.
  ~WorkPool() { Stop(); }

  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Discards `work` after Stop.
  void Add(absl::AnyInvocable<void() &&> work) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all added work is done.
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
