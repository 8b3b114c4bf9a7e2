// SPDX-License-Identifier: Apache-2.0
// SendSource: the bytes of a file, a pipe, a device or standard input, as ferry send sends them.
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
  // How long to wait for the whole of what is no file on a disk, its writer included.
  absl::Duration timeout = absl::Minutes(1);
  // More than this is refused: a device may have no end.
  size_t most_bytes = size_t{1} << 30;
  // How many bytes there should be, if that is known. Nothing is read after one more than these.
  std::optional<size_t> expected_bytes;
};

// How many bytes there are is known once it is open, before anything is joined. A regular file that
// reports its size is read later, straight into the tensor; everything else, and a file whose
// reported size is wrong (0 in /proc, a page in /sys), is read until its end first. Not
// thread-safe.
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
  // If has_more(), what has been read of it: one byte more than were expected.
  size_t bytes() const { return bytes_; }
  bool has_more() const { return has_more_; }

  // Copies all of it to `to`, once. Errors: UNAVAILABLE; DATA_LOSS if it has become shorter.
  absl::Status Read(char* to);

 private:
  SendSource(std::string name, int fd, bool is_owned)
      : name_(std::move(name)), fd_(fd), is_owned_(is_owned) {}

  // Reads until the end, or what is too much, into content_.
  absl::Status ReadToEnd(const SendSourceOptions& options);
  absl::Status Failure(int error) const;

  const std::string name_;
  const int fd_;
  // Standard input is not.
  const bool is_owned_;
  size_t bytes_ = 0;
  // True: it is in content_.
  bool is_read_ = false;
  bool has_more_ = false;
  // Its pieces: what grows is not copied, and takes no more memory than was read.
  std::vector<std::string> content_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_SEND_SOURCE_H_
