// SPDX-License-Identifier: Apache-2.0
// TransferLog: tensors received from other workers, kept for masters that use Logging.
#ifndef FERRY_TENSORFLOW_WORKER_TRANSFER_LOG_H_
#define FERRY_TENSORFLOW_WORKER_TRANSFER_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "proto/tf_step_stats.pb.h"

namespace ferry::worker {

// Thread-safe. Records while switched on. Drops the oldest entries that were not fetched when there
// are too many steps or rows.
// Source: tensorflow/core/distributed_runtime/worker_cache_logger.cc, which keeps as many steps.
class TransferLog final {
 public:
  TransferLog(size_t max_steps, size_t max_rows) : max_steps_(max_steps), max_rows_(max_rows) {}

  // Reference-counted: each user that switches it on must switch it off.
  void Switch(bool on) ABSL_LOCKS_EXCLUDED(mu_);
  bool is_on() const ABSL_LOCKS_EXCLUDED(mu_);

  // Adds the rows of one run; a step may have several. Runs without rows are not kept.
  void Add(int64_t step_id, tensorflow::StepStats rows) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns and removes the rows of all runs in the step; nullopt if there are none.
  std::optional<tensorflow::StepStats> Take(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Step {
    int64_t id = 0;
    size_t row_count = 0;
    tensorflow::StepStats rows;
  };

  const size_t max_steps_;
  const size_t max_rows_;
  mutable absl::Mutex mu_;
  int wanted_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Step> steps_ ABSL_GUARDED_BY(mu_);
  size_t row_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_TRANSFER_LOG_H_
