// SPDX-License-Identifier: Apache-2.0
// QueuedOutput: stdout of verbs that end when they are told to, whether or not anybody reads it.
#ifndef FERRY_CLI_QUEUED_OUTPUT_H_
#define FERRY_CLI_QUEUED_OUTPUT_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "cli/signals.h"

namespace ferry::cli {

// Other threads add text and the main thread writes it, but only while stdout takes it: a pipe that
// is full, or a terminal that is stopped, holds nobody up. Goes past stdio.
class QueuedOutput final {
 public:
  // Waits for no more than this: who reads more slowly than that has stopped reading.
  static constexpr size_t kMaxBytes = size_t{256} << 20;

  explicit QueuedOutput(BlockedSignals& signals);

  QueuedOutput(const QueuedOutput&) = delete;
  QueuedOutput& operator=(const QueuedOutput&) = delete;

  // From any thread; never blocks. False, then and for ever after, when too much waits: the text is
  // dropped, so that there is no gap in what is told.
  bool Add(absl::string_view text) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until stdout takes something, and writes it; for at most `timeout`, and until somebody
  // calls BlockedSignals::Wake. True when one of the signals has come. On the main thread.
  //   Errors: as FlushOutput.
  absl::StatusOr<bool> Step(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes everything. True when one of the signals has come, or nobody has read any of it for
  // `patience`.
  absl::StatusOr<bool> Drain(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

  // Not written yet.
  size_t waiting_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  int fd() const;

  BlockedSignals& signals_;
  // stdout again, in a way that never blocks; invalid if that cannot be had.
  UniqueFd own_fd_;

  // Of the main thread: what is being written.
  std::string writing_;
  size_t written_ = 0;

  mutable absl::Mutex mu_;
  bool is_full_ ABSL_GUARDED_BY(mu_) = false;
  size_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::string> pieces_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_QUEUED_OUTPUT_H_
