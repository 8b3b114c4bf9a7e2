// SPDX-License-Identifier: Apache-2.0
// MemoryHolders: who still uses registered memory, and whether it has been let go of.
#ifndef FERRY_GPU_CUDA_MEMORY_HOLDERS_H_
#define FERRY_GPU_CUDA_MEMORY_HOLDERS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ferry::cuda {

// Outlives the memory, so that those who wait for its end may look at it. Thread-safe.
class MemoryHolders final {
 public:
  using Id = uint64_t;

  MemoryHolders() = default;
  MemoryHolders(const MemoryHolders&) = delete;
  MemoryHolders& operator=(const MemoryHolders&) = delete;

  //   name: human-readable, for errors: "step 3 key x".
  Id Add(std::string name) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(Id id) ABSL_LOCKS_EXCLUDED(mu_);
  // A few of them, the oldest first, and how many there are. Empty: there is none.
  std::string Describe() const ABSL_LOCKS_EXCLUDED(mu_);

  // Called once: nothing of Ferry's uses the memory any more.
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until End, at most for `timeout`. Returns whether it has been called.
  bool AwaitEnd(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  Id last_id_ ABSL_GUARDED_BY(mu_) = 0;
  // In the order in which they came.
  std::map<Id, std::string> names_ ABSL_GUARDED_BY(mu_);
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_MEMORY_HOLDERS_H_
