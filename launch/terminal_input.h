// SPDX-License-Identifier: Apache-2.0
// TerminalInput: forwards the launcher's terminal input to one launched process.
#ifndef FERRY_LAUNCH_TERMINAL_INPUT_H_
#define FERRY_LAUNCH_TERMINAL_INPUT_H_

#include <poll.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

#include "base/unique_fd.h"

namespace ferry {

// The launched process leads its own process group, which is never in the foreground: if it read
// the terminal itself, the kernel would stop it. The launcher reads for it instead, and only while
// the launcher is in the foreground, so that a background job is not stopped for input that it may
// never read. An end of input (Ctrl-D) closes the process's standard input. Used on one thread.
class TerminalInput final {
 public:
  //   terminal: a descriptor of the terminal; not owned.
  //   to: the write end of the process's input pipe; it is made non-blocking.
  TerminalInput(int terminal, UniqueFd to);

  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  // Adds the descriptors to poll before the next Move.
  void AddPolled(std::vector<pollfd>& polled) const;
  // Returns the time after which to call Move even if no polled descriptor is ready: no event
  // reports that the launcher has come to the foreground.
  absl::Duration NextPoll() const;
  // Forwards available input without blocking.
  void Move();
  // The process has exited: later input is not read.
  void Close() { to_.Reset(); }

 private:
  bool IsForeground() const;
  // Returns false if nothing can be read now.
  bool Read();

  // The terminal, reopened, because O_NONBLOCK on the caller's descriptor would affect every
  // process that shares it.
  const UniqueFd terminal_;
  UniqueFd to_;
  std::string waiting_;
  bool is_at_end_ = false;
};

}  // namespace ferry

#endif  // FERRY_LAUNCH_TERMINAL_INPUT_H_
