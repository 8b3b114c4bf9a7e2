// SPDX-License-Identifier: Apache-2.0
// ClosableWriter: stops writes to memory that is about to be reused.
#ifndef FERRY_TENSOR_CLOSABLE_WRITER_H_
#define FERRY_TENSOR_CLOSABLE_WRITER_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ferry {

// Thread-safe. Outlives its writers. Writers write in pieces, so that Close does not block for
// long.
class ClosableWriter final {
 public:
  // Runs `write` and returns true, or returns false if closed.
  template <typename Write>
  bool Pass(Write&& write) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return false;
    std::forward<Write>(write)();
    return true;
  }

  // Blocks until a write in progress has returned; no write runs after that.
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    is_closed_ = true;
  }

 private:
  absl::Mutex mu_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry

#endif  // FERRY_TENSOR_CLOSABLE_WRITER_H_
