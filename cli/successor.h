// SPDX-License-Identifier: Apache-2.0
// Successor: the program that is to replace this coordinator within the same process.
#ifndef FERRY_CLI_SUCCESSOR_H_
#define FERRY_CLI_SUCCESSOR_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "coord/server/handover_proto.h"

namespace ferry::cli {

// `ferry coordinator ... --handover-format` prints this line with the version (coord::
// kHandoverFormat) and exits.
inline constexpr char kHandoverFormatFlag[] = "handover-format";
inline constexpr char kHandoverFormatLine[] = "ferry hand-over format ";

// Thread-safe.
//
// An upgrade in place: the program is the one that is now at the path of the running one, with the
// same arguments. It replaces the process image (execve), so that the process id stays, and with it
// a container or what supervises the process. Descriptors stay open: those of the state that is
// left to it, in a memfd.
class Successor final {
 public:
  // Remembers path and arguments. To be created at start: once the file has been replaced, the path
  // is not known any more.
  Successor();

  const std::string& path() const { return path_; }

  // Runs the program to learn whether it can continue this one. Blocks for at most 5 s.
  //   Errors: FAILED_PRECONDITION if it does not run with these arguments, or reads another format.
  absl::Status Check() const;

  // Replaces the process, whose threads end wherever they are. Returns only if that fails, and
  // nothing has changed then.
  //   Errors: UNAVAILABLE with the kernel's reason; as EncodeHandover.
  absl::Status Replace(const coord::HandoverState& state) const;

 private:
  std::string path_;
  std::vector<std::string> arguments_;
};

// Returns what the predecessor has left, if there is one; the caller owns the descriptors in it.
// If its state cannot be read, says so on stderr and closes all inherited sockets, the listening
// ones included. To be called once, before there are other sockets.
std::optional<coord::HandoverState> TakeOver();

}  // namespace ferry::cli

#endif  // FERRY_CLI_SUCCESSOR_H_
