// SPDX-License-Identifier: Apache-2.0
// NonBlockingWriter: writes to a stream only what is taken at once, and keeps the rest.
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
  // Append refuses what would make more than this wait: a reader who is slower has stopped reading.
  size_t max_waiting_bytes = std::numeric_limits<size_t>::max();
  // Called on the thread of Append, without a lock, when bytes wait and none did before: there is
  // something to Flush.
  std::function<void()> on_waiting;
};

// Standard output, say, of a process that must not wait for whoever reads it: a pager that shows
// its first page, or a terminal that was stopped, holds nobody up. Goes past stdio. Files are
// written at once, as far as that ever blocks.
class NonBlockingWriter final {
 public:
  // `file` outlives it, and is not written by others meanwhile.
  explicit NonBlockingWriter(std::FILE* file, NonBlockingWriterOptions options = {});

  NonBlockingWriter(const NonBlockingWriter&) = delete;
  NonBlockingWriter& operator=(const NonBlockingWriter&) = delete;

  // Adds `bytes`, from any thread; writes nothing. False, then and for ever after, when too much
  // would wait: they are dropped, so that there is no gap in what is written.
  bool Append(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // The others are called on one thread at a time.

  // Adds `bytes`; they are written together with others before long, or by Flush. 0, or errno as
  // Flush.
  int Write(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes what is taken of what waits, `max_bytes` at most. 0, or errno of a failure to write;
  // what waits is dropped then.
  int Flush(size_t max_bytes = std::numeric_limits<size_t>::max()) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes that wait; from any thread.
  size_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);
  // To poll for POLLOUT while something waits; negative if nothing ever does after a Flush.
  int fd() const { return own_fd_.valid() ? own_fd_.get() : stream_fd_; }
  // Whether nothing can be written for ever, as far as is seen without writing: 0 or an errno.
  int FindLoss() const;

 private:
  // As write(2), of the beginning of `writing_`.
  ssize_t WriteSome(size_t max_bytes);
  // Fills `writing_` if it is empty. False: nothing waits.
  bool TakePiece() ABSL_LOCKS_EXCLUDED(mu_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mu_);

  const NonBlockingWriterOptions options_;
  std::FILE* const file_;
  // Negative: it has none, as a stream in memory.
  const int stream_fd_;
  // The stream again, in a way that never blocks; invalid if there is none.
  UniqueFd own_fd_;
  bool is_socket_ = false;
  bool is_file_ = false;

  // What is being written, and how much of it has been. Of the thread that writes.
  std::string writing_;
  size_t written_ = 0;

  mutable absl::Mutex mu_;
  bool is_full_ ABSL_GUARDED_BY(mu_) = false;
  size_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::string> pieces_ ABSL_GUARDED_BY(mu_);
  // Room of a piece that was written, for the next.
  std::string spare_ ABSL_GUARDED_BY(mu_);
};

// Standard output and standard error. If both end at one and the same place, what goes to them
// stays in order. Used on one thread.
class NonBlockingWriters final {
 public:
  NonBlockingWriters(std::FILE* out, std::FILE* err);

  NonBlockingWriter& out() { return out_; }
  NonBlockingWriter& err() { return own_err_ == nullptr ? out_ : *own_err_; }

  // Of both: errno of the first failure, or 0; what waits.
  int Flush();
  size_t waiting() const {
    return out_.waiting() + (own_err_ != nullptr ? own_err_->waiting() : 0);
  }
  // Adds what is to be polled before the next Flush can write anything.
  void AddPolled(std::vector<pollfd>& polled) const;

 private:
  NonBlockingWriter out_;
  std::unique_ptr<NonBlockingWriter> own_err_;
};

}  // namespace ferry

#endif  // FERRY_BASE_NON_BLOCKING_WRITER_H_
