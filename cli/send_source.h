// SPDX-License-Identifier: Apache-2.0
// SendSource: the input of ferry send: a file, pipe, device or standard input.
#ifndef FERRY_CLI_SEND_SOURCE_H_
#define FERRY_CLI_SEND_SOURCE_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::cli {

struct SendSourceOptions {
  // Timeout for reading input that is not a regular file, including waiting for its writer.
  absl::Duration timeout = absl::Minutes(1);
  // Longer input is rejected: a device may be endless.
  size_t most_bytes = size_t{1} << 30;
  // Expected number of bytes, if known. Reads at most one byte more than this.
  std::optional<size_t> expected_bytes;
};

// The size is known once it is open, before joining. A regular file that reports its size is read
// later, directly into the tensor; everything else, including files with a wrong size (0 in /proc,
// a page in /sys), is read to its end first. Not thread-safe.
class SendSource final {
 public:
  //   path: "-" is standard input.
  //   Errors: UNAVAILABLE with the reason if it cannot be read; DEADLINE_EXCEEDED if it has not
  //   ended in time; RESOURCE_EXHAUSTED if it is longer than most_bytes.
  static absl::StatusOr<std::unique_ptr<SendSource>> Open(const std::string& path,
                                                          const SendSourceOptions& options);
  ~SendSource();
  SendSource(const SendSource&) = delete;
  SendSource& operator=(const SendSource&) = delete;

  // Quoted path, or "stdin".
  const std::string& name() const { return name_; }
  // Size in bytes. If has_more(), what has been read so far: one byte more than expected.
  size_t bytes() const { return bytes_; }
  bool has_more() const { return has_more_; }

  // Copies everything to `to`; call once. Errors: UNAVAILABLE; DATA_LOSS if it has become shorter.
  absl::Status Read(char* to);

 private:
  SendSource(std::string name, int fd, bool is_owned)
      : name_(std::move(name)), fd_(fd), is_owned_(is_owned) {}

  // Reads into content_ until the end, or beyond the limit.
  absl::Status ReadToEnd(const SendSourceOptions& options);
  absl::Status Failure(int error) const;

  const std::string name_;
  const int fd_;
  // False for standard input.
  const bool is_owned_;
  size_t bytes_ = 0;
  // True if the data is in content_.
  bool is_read_ = false;
  bool has_more_ = false;
  // In pieces, so that growing neither copies nor over-allocates.
  std::vector<std::string> content_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_SEND_SOURCE_H_
