// SPDX-License-Identifier: Apache-2.0
// NonBlockingWriter: writes to a stream without blocking and queues the rest.
#ifndef FERRY_BASE_NON_BLOCKING_WRITER_H_
#define FERRY_BASE_NON_BLOCKING_WRITER_H_

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "base/unique_fd.h"

namespace ferry {

struct NonBlockingWriterOptions {
  // Append fails if more than this would be queued: a reader this slow has stopped reading.
  size_t max_waiting_bytes = std::numeric_limits<size_t>::max();
  // Called on the thread of Append, without a lock, when the queue becomes non-empty: a Flush is
  // needed.
  std::function<void()> on_waiting;
};

// For a stream such as standard output of a process that must not wait for its reader: a pager
// that shows its first page, or a stopped terminal, does not block it. Bypasses stdio. Regular
// files are written immediately, as far as they can block at all.
class NonBlockingWriter final {
 public:
  // `file` outlives it and is not written by others meanwhile.
  explicit NonBlockingWriter(std::FILE* file, NonBlockingWriterOptions options = {});

  NonBlockingWriter(const NonBlockingWriter&) = delete;
  NonBlockingWriter& operator=(const NonBlockingWriter&) = delete;

  // Queues `bytes` from any thread; writes nothing. Returns false, from then on permanently, when
  // the queue limit would be exceeded: the bytes are dropped, so that the output has no gap.
  bool Append(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // The other methods are called on one thread at a time.

  // Queues `bytes`, to be written with others or by Flush. Returns 0, or errno as Flush.
  int Write(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes as much of the queue as the stream accepts, `max_bytes` at most. Returns 0, or errno of
  // a failed write, after which the queue is dropped.
  int Flush(size_t max_bytes = std::numeric_limits<size_t>::max()) ABSL_LOCKS_EXCLUDED(mu_);

  // The number of queued bytes; from any thread.
  size_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);
  // For polling POLLOUT while bytes are queued; negative if a Flush never leaves any.
  int fd() const { return own_fd_.valid() ? own_fd_.get() : stream_fd_; }
  // Returns 0, or an errno if the stream can never be written again, as far as is visible without
  // writing.
  int FindLoss() const;

 private:
  // As write(2), for the beginning of `writing_`.
  ssize_t WriteSome(size_t max_bytes);
  // Fills `writing_` if it is empty. Returns false if nothing is queued.
  bool TakePiece() ABSL_LOCKS_EXCLUDED(mu_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mu_);

  const NonBlockingWriterOptions options_;
  std::FILE* const file_;
  // Negative if it has none, such as a stream in memory.
  const int stream_fd_;
  // The same file opened again as non-blocking; invalid if that is not possible.
  UniqueFd own_fd_;
  bool is_socket_ = false;
  bool is_file_ = false;

  // The piece being written and how much of it has been. Used by the writing thread only.
  std::string writing_;
  size_t written_ = 0;

  mutable absl::Mutex mu_;
  bool is_full_ ABSL_GUARDED_BY(mu_) = false;
  size_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::string> pieces_ ABSL_GUARDED_BY(mu_);
  // The buffer of a written piece, for reuse.
  std::string spare_ ABSL_GUARDED_BY(mu_);
};

// Standard output and standard error. If both refer to the same file, their order is preserved.
// Used on one thread.
class NonBlockingWriters final {
 public:
  NonBlockingWriters(std::FILE* out, std::FILE* err);

  NonBlockingWriter& out() { return out_; }
  NonBlockingWriter& err() { return own_err_ == nullptr ? out_ : *own_err_; }

  // For both: errno of the first failure, or 0; the queued bytes.
  int Flush();
  size_t waiting() const {
    return out_.waiting() + (own_err_ != nullptr ? own_err_->waiting() : 0);
  }
  // Adds the descriptors to poll before the next Flush can make progress.
  void AddPolled(std::vector<pollfd>& polled) const;

 private:
  NonBlockingWriter out_;
  std::unique_ptr<NonBlockingWriter> own_err_;
};

}  // namespace ferry

#endif  // FERRY_BASE_NON_BLOCKING_WRITER_H_
