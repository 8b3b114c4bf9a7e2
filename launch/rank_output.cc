// SPDX-License-Identifier: Apache-2.0
// RankOutput: from the process's pipes to the launcher's streams.
#include "launch/rank_output.h"

#include <errno.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// Limit on the final read: another process in the group may keep writing indefinitely.
constexpr size_t kMaxDrainBytes = 1 << 20;
constexpr size_t kMaxTailLineBytes = 1000;

std::string Tag(const LaunchOptions& options, int rank) {
  return options.prefix_output ? absl::StrCat("[", rank, "] ") : "";
}

}  // namespace

RankOutput::RankOutput(const LaunchOptions& options, int rank, UniqueFd stdout_fd,
                       UniqueFd stderr_fd, NonBlockingWriter& out, NonBlockingWriter& err)
    : options_(options),
      streams_{
          {std::move(stdout_fd), LineTagger(Tag(options, rank), options.max_line_bytes), out},
          {std::move(stderr_fd), LineTagger(Tag(options, rank), options.max_line_bytes), err}} {}

int RankOutput::Read(int stream) { return ReadStream(streams_[stream], kReadBytes); }

int RankOutput::Drain() {
  int error = 0;
  for (Stream& stream : streams_) {
    const int read_error = ReadStream(stream, kMaxDrainBytes);
    const int line_error = FinishLine(stream);
    if (error == 0) error = read_error != 0 ? read_error : line_error;
  }
  return error;
}

int RankOutput::ReadStream(Stream& stream, size_t max_bytes) {
  int error = 0;
  char buffer[kReadBytes];
  for (size_t total = 0; stream.fd.valid() && total < max_bytes;) {
    const ssize_t count = read(stream.fd.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return error;
    int failed = 0;
    if (count <= 0) {
      failed = FinishLine(stream);
      stream.fd.Reset();
    } else {
      total += count;
      const absl::string_view bytes(buffer, count);
      // Without tags, bytes are passed on unchanged; lines are still collected for the tail.
      if (!options_.prefix_output) failed = stream.to.Write(bytes);
      stream.tagger.Append(bytes, [this, &stream, &failed](absl::string_view line) {
        const int line_error = TakeLine(stream, line);
        if (failed == 0) failed = line_error;
      });
    }
    if (error == 0) error = failed;
  }
  return error;
}

int RankOutput::FinishLine(Stream& stream) {
  int error = 0;
  stream.tagger.Flush(
      [this, &stream, &error](absl::string_view line) { error = TakeLine(stream, line); });
  return error;
}

int RankOutput::TakeLine(Stream& stream, absl::string_view line) {
  if (options_.tail_line_count > 0) {
    if (tail_.size() == static_cast<size_t>(options_.tail_line_count)) tail_.pop_front();
    tail_.emplace_back(stream.tagger.Untagged(line).substr(0, kMaxTailLineBytes));
  }
  return options_.prefix_output ? stream.to.Write(line) : 0;
}

}  // namespace ferry
