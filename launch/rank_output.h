// SPDX-License-Identifier: Apache-2.0
// RankOutput: takes what one launched process writes to where the launcher writes.
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

  //   options: as Launch has them; out, err: may be one and the same; they outlive this.
  RankOutput(const LaunchOptions& options, int rank, UniqueFd stdout_fd, UniqueFd stderr_fd,
             NonBlockingWriter& out, NonBlockingWriter& err);

  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // What to poll for `stream`; negative once it is at its end, and while more than `max_waiting`
  // bytes wait where it goes to.
  int fd(int stream, size_t max_waiting) const {
    return streams_[stream].to.waiting() > max_waiting ? -1 : streams_[stream].fd.get();
  }

  // Passes on what is there of `stream`, or a part of it. 0, or errno of a failure to write.
  int Read(int stream);
  // For when the process has ended: what is there of both streams, and their unfinished last lines.
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
