// SPDX-License-Identifier: Apache-2.0
// Copies tensors: with non-temporal stores when they are large, and on several cores.
#ifndef FERRY_TENSOR_COPY_H_
#define FERRY_TENSOR_COPY_H_

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

#include "base/thread.h"

namespace ferry {

// From this size on non-temporal stores are faster: the destination is not read first.
inline constexpr size_t kStreamedCopyBytes = size_t{4} << 20;

// As memcpy; with non-temporal stores above kStreamedCopyBytes where the machine has them.
void CopyBytes(void* to, const void* from, size_t bytes);
// As CopyBytes, with non-temporal stores for any size. For benchmarks and tests.
void CopyBytesStreamed(void* to, const void* from, size_t bytes);

// Cancels a copy. Thread-safe.
class CopyControl final {
 public:
  // Blocks until pieces in progress are copied; nothing is written after that.
  void Cancel();
  // Call before the copy begins: checks that the bytes are 0 or 1 while each part is in the
  // caches.
  void CheckBooleans() { checks_booleans_ = true; }
  // Call after the copy: true if checking was requested and all bytes were 0 or 1.
  bool AreBooleans() const {
    return checks_booleans_ && !has_non_boolean_.load(std::memory_order_relaxed);
  }

 private:
  friend class CopyPool;
  bool checks_booleans_ = false;
  std::atomic<bool> has_non_boolean_{false};
  std::atomic<bool> is_cancelled_{false};
  std::atomic<int> busy_{0};
};

struct CopyPoolOptions {
  // Helper threads; -1: one less than the cores available to this process, at most 3.
  int threads = -1;
};

// Thread-safe. Its threads, "ferry-copy", sleep when there is nothing to copy.
class CopyPool final {
 public:
  explicit CopyPool(CopyPoolOptions options = {});
  // Finishes the copies in progress.
  ~CopyPool();

  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // Copies on the pool's threads and the caller's; blocks until done. Each idle thread takes the
  // next piece, so that a core that is busy with other work does not delay the copy.
  //   control: can cancel the copy. May be null, here and below.
  void Copy(void* to, const void* from, size_t bytes, std::shared_ptr<CopyControl> control = {});
  // Copies on the pool's threads, then calls `done` on one of them. Synchronous if the pool has no
  // threads.
  void CopyAsync(void* to, const void* from, size_t bytes, absl::AnyInvocable<void() &&> done,
                 std::shared_ptr<CopyControl> control = {});

 private:
  struct Job;

  static constexpr int kNoCore = -1;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  static void Work(Job& job);
  static void CopyPart(Job& job, size_t begin, size_t bytes, bool is_streamed);
  static void CopyChecked(Job& job, size_t begin, size_t bytes, bool is_streamed);
  //   kept_free: a core on which no helper may run, or kNoCore.
  void Announce(std::shared_ptr<Job> job, int helpers, int kept_free) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant once the threads run; empty if the affinity cannot be read.
  cpu_set_t cores_;
  absl::Mutex mu_;
  int kept_free_ ABSL_GUARDED_BY(mu_) = kNoCore;
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
  // One entry per requested helper.
  std::vector<std::shared_ptr<Job>> wanted_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace ferry

#endif  // FERRY_TENSOR_COPY_H_
