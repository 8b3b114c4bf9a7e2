// SPDX-License-Identifier: Apache-2.0
// RankOutput: forwards the output of one launched process to the launcher's output streams.
#ifndef FERRY_LAUNCH_RANK_OUTPUT_H_
#define FERRY_LAUNCH_RANK_OUTPUT_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"

#include "base/non_blocking_writer.h"
#include "base/unique_fd.h"
#include "launch/launch_environment.h"
#include "launch/line_tagger.h"

namespace ferry {

// Both output streams of a process, and its last lines. Used on one thread.
class RankOutput final {
 public:
  static constexpr int kStreamCount = 2;

  //   options: those of Launch; out, err: may be the same; all outlive this.
  RankOutput(const LaunchOptions& options, int rank, UniqueFd stdout_fd, UniqueFd stderr_fd,
             NonBlockingWriter& out, NonBlockingWriter& err);

  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // The descriptor to poll for `stream`; negative after its end, and while more than `max_waiting`
  // bytes are buffered in its destination.
  int fd(int stream, size_t max_waiting) const {
    return streams_[stream].to.waiting() > max_waiting ? -1 : streams_[stream].fd.get();
  }

  // Forwards available bytes of `stream`, or a part of them. Returns 0, or errno of a failed write.
  int Read(int stream);
  // For a process that has exited: forwards the remaining bytes of both streams, including
  // unfinished last lines.
  int Drain();

  // The last lines of both streams, without tags.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  struct Stream {
    UniqueFd fd;
    LineTagger tagger;
    NonBlockingWriter& to;
  };

  int ReadStream(Stream& stream, size_t max_bytes);
  int FinishLine(Stream& stream);
  int TakeLine(Stream& stream, absl::string_view line);

  const LaunchOptions& options_;
  Stream streams_[kStreamCount];
  std::deque<std::string> tail_;
};

}  // namespace ferry

#endif  // FERRY_LAUNCH_RANK_OUTPUT_H_
