// SPDX-License-Identifier: Apache-2.0
// PutMemoryMaker: makes a GPU's pool for one-sided transfers, once.
#ifndef FERRY_TRANSPORT_NCCL_PUT_MEMORY_MAKER_H_
#define FERRY_TRANSPORT_NCCL_PUT_MEMORY_MAKER_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "transport/nccl/put_memory.h"
#include "transport/nccl/retry_backoff.h"

namespace ferry {

// Keeps the pool once it is made. A failure may pass (memory that was in use, a driver call that
// failed): so it is reported as it is until its retry is due, and then tried again. Thread-safe.
class PutMemoryMaker final {
 public:
  explicit PutMemoryMaker(const Clock& clock = SteadyClock()) : clock_(clock) {}

  using Make = absl::FunctionRef<absl::StatusOr<std::shared_ptr<PutMemory>>()>;
  // Blocks while `make` does, or another thread's.
  absl::StatusOr<std::shared_ptr<PutMemory>> Get(Make make) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const Clock& clock_;
  absl::Mutex mu_;
  std::shared_ptr<PutMemory> made_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  RetryBackoff retry_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PUT_MEMORY_MAKER_H_
