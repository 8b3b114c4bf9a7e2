// SPDX-License-Identifier: Apache-2.0
// TerminalInput: takes what is typed at the launcher's terminal to one launched process.
#ifndef FERRY_LAUNCH_TERMINAL_INPUT_H_
#define FERRY_LAUNCH_TERMINAL_INPUT_H_

#include <poll.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

#include "base/unique_fd.h"

namespace ferry {

// The launched process leads a process group of its own, which is never in the foreground: if it
// read the terminal itself, the kernel would stop it. The launcher reads for it instead, and only
// while the launcher is in the foreground, so that a job in the background is not stopped for input
// that it may never want. An end of input (Ctrl-D) closes the process's standard input. Used on one
// thread.
class TerminalInput final {
 public:
  //   terminal: a descriptor of the terminal, which stays the caller's.
  //   to: the end of a pipe that the process reads; it is made non-blocking.
  TerminalInput(int terminal, UniqueFd to);

  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  // Adds what is to be polled before the next Move can do anything.
  void AddPolled(std::vector<pollfd>& polled) const;
  // How soon Move is to be called even if nothing that was polled is ready: nothing announces that
  // the launcher has come to the foreground.
  absl::Duration NextLook() const;
  // Moves what is there, without blocking.
  void Move();
  // The process has ended: what is typed from now on is not read.
  void Close() { to_.Reset(); }

 private:
  bool IsForeground() const;
  // False when there is nothing to read now.
  bool Read();

  // The terminal, opened once more, because O_NONBLOCK of the caller's descriptor would be that of
  // every process that shares it.
  const UniqueFd terminal_;
  UniqueFd to_;
  std::string waiting_;
  bool is_at_end_ = false;
};

}  // namespace ferry

#endif  // FERRY_LAUNCH_TERMINAL_INPUT_H_
