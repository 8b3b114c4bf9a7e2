// SPDX-License-Identifier: Apache-2.0
// DeferredReleases: releases Python objects for threads that must not wait for the GIL.
#ifndef FERRY_PYTHON_SRC_DEFERRED_RELEASE_H_
#define FERRY_PYTHON_SRC_DEFERRED_RELEASE_H_

#include <atomic>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ferry::python {

// A tensor of the program is released on the thread that drops its last view, which is often the
// one that moves all tensors. Taking the GIL there would stop every transfer until the interpreter
// gives it away, so the release is left to a thread that has it: the next one that calls into this
// module, one that waits in it, or the main thread between two bytecodes. Thread-safe.
class DeferredReleases final {
 public:
  // Called with the GIL held.
  using Release = void (*)(void* context);

  // The one of this process.
  static DeferredReleases& Get();

  // Needs no GIL. Once the interpreter is being finalized, nothing is released.
  void Add(Release release, void* context) ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: the GIL. Costs one load when there is nothing to release.
  void Run() {
    if (has_any_.load(std::memory_order_acquire)) RunAll();
  }

 private:
  void RunAll() ABSL_LOCKS_EXCLUDED(mu_);

  std::atomic<bool> has_any_{false};
  absl::Mutex mu_;
  std::vector<std::pair<Release, void*>> releases_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_DEFERRED_RELEASE_H_
