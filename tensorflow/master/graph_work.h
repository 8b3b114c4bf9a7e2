// SPDX-License-Identifier: Apache-2.0
// GraphWork: bounded queue in front of the threads that process graphs.
#ifndef FERRY_TENSORFLOW_MASTER_GRAPH_WORK_H_
#define FERRY_TENSORFLOW_MASTER_GRAPH_WORK_H_

#include <cstddef>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "base/table_sizes.h"
#include "base/usable_resources.h"
#include "tensorflow/master/work_pool.h"

namespace ferry::master {

// Thread-safe. Must outlive its work.
class GraphWork final {
 public:
  struct Limits {
    // Limits on the queue: number of requests, and the memory they hold.
    size_t max_waiting_graphs = 10'000;
    size_t max_waiting_bytes = ShareOfMemory(size_t{8} << 30, 4);
  };
  using Work = absl::AnyInvocable<void(absl::Status) &&>;

  //   run: runs work on a few threads, in order.
  GraphWork(RunWork run, Limits limits) : run_(std::move(run)), limits_(limits) {}

  GraphWork(const GraphWork&) = delete;
  GraphWork& operator=(const GraphWork&) = delete;

  // Queues a new request: `work` is called with OK on one of those threads, or, if the queue is
  // full, inline with RESOURCE_EXHAUSTED naming the limit.
  //   bytes: memory that the request holds while queued.
  void Add(size_t bytes, Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // Continues admitted work; not subject to the limits.
  void GoOn(absl::AnyInvocable<void() &&> work) { run_(std::move(work)); }
  // Adds sizes under "work.".
  void AddTableSizes(TableSizes& sizes) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    sizes["work.waiting"] = count_;
    sizes["work.waiting_bytes"] = bytes_;
  }

 private:
  absl::Status Enter(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const RunWork run_;
  const Limits limits_;
  mutable absl::Mutex mu_;
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_GRAPH_WORK_H_
