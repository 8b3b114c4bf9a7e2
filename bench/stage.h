// SPDX-License-Identifier: Apache-2.0
// BenchStage: what a bench is doing, and which of its processes holds it up, for the progress line.
#ifndef FERRY_BENCH_STAGE_H_
#define FERRY_BENCH_STAGE_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace ferry::cli {

// True if a process is stopped, by a signal (Ctrl-Z, SIGSTOP) or a debugger.
//   stat: content of /proc/PID/stat.
bool IsStoppedStat(absl::string_view stat);
bool IsStopped(pid_t pid);

// A process that the bench waits for.
struct BenchWatched {
  // For messages, "process 2".
  std::string name;
  pid_t pid = 0;
};

// Thread-safe.
class BenchStage final {
 public:
  //   is_stopped: by default queries the kernel.
  explicit BenchStage(std::string text, std::function<bool(pid_t)> is_stopped = IsStopped)
      : is_stopped_(std::move(is_stopped)), text_(std::move(text)) {}
  void Set(std::string text) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    text_ = std::move(text);
  }
  // Includes stopped processes: "measuring 8 B; process 1 (pid 17) is stopped, ...".
  std::string Get() const ABSL_LOCKS_EXCLUDED(mu_);
  // Watches the process until the returned handle is released, which may be after this object's
  // end.
  [[nodiscard]] std::shared_ptr<const BenchWatched> Watch(std::string name, pid_t pid)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<bool(pid_t)> is_stopped_;
  mutable absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<const BenchWatched>> watched_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cli

#endif  // FERRY_BENCH_STAGE_H_
