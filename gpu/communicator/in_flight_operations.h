// SPDX-License-Identifier: Apache-2.0
// InFlightOperations: a program's outstanding operations on a communicator.
#ifndef FERRY_GPU_COMMUNICATOR_IN_FLIGHT_OPERATIONS_H_
#define FERRY_GPU_COMMUNICATOR_IN_FLIGHT_OPERATIONS_H_

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "gpu/cuda/cuda_event.h"
#include "gpu/nccl_arbiter.h"

namespace ferry {

// Thread-safe.
class InFlightOperations final {
 public:
  // `event` marks the completion of an operation.
  void Add(std::shared_ptr<const cuda::ReadyEvent> event) {
    absl::MutexLock lock(&mu_);
    // Events of one stream complete in order, and there are few streams.
    while (!ends_.empty() && ends_.front()->IsDone().value_or(false)) ends_.pop_front();
    ends_.push_back(std::move(event));
  }
  // For operations whose completion is not known before the communicator ends.
  void AddUntilEnd(std::shared_ptr<NcclTurn> turn) {
    absl::MutexLock lock(&mu_);
    endless_.push_back(std::move(turn));
  }
  // The communicator has ended.
  void EndAll() {
    // Destroyed after the lock is released: this notifies the device's keyed transfers.
    std::vector<std::shared_ptr<NcclTurn>> ended;
    absl::MutexLock lock(&mu_);
    ended.swap(endless_);
    ends_.clear();
  }
  // Returns true if no operation is in flight. Errors: the device's error.
  absl::StatusOr<bool> IsOver() const {
    std::deque<std::shared_ptr<const cuda::ReadyEvent>> ends;
    {
      absl::MutexLock lock(&mu_);
      if (!endless_.empty()) return false;
      ends = ends_;
    }
    for (const auto& end : ends) {
      FERRY_ASSIGN_OR_RETURN(const bool is_done, end->IsDone());
      if (!is_done) return false;
    }
    return true;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::shared_ptr<NcclTurn>> endless_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<const cuda::ReadyEvent>> ends_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_IN_FLIGHT_OPERATIONS_H_
