// SPDX-License-Identifier: Apache-2.0
// Progress: prints on stderr what is being waited for, if it takes over a second.
#ifndef FERRY_CLI_PROGRESS_H_
#define FERRY_CLI_PROGRESS_H_

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/thread.h"

namespace ferry::cli {

// While it exists, prints "ferry: <text> (12s)": on a terminal one line, refreshed every second and
// erased at the end; else a line after the first second and then every five. The text is computed
// on a thread of its own ("ferry-progress") and may block; an empty text prints nothing.
class Progress final {
 public:
  explicit Progress(std::function<std::string()> text);
  explicit Progress(std::string text);
  ~Progress();

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::function<std::string()> text_;
  const absl::Time start_;
  const bool on_terminal_;

  absl::Mutex mu_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_PROGRESS_H_
