// SPDX-License-Identifier: Apache-2.0
// Thread: a named thread that its destructor joins.
#ifndef FERRY_BASE_THREAD_H_
#define FERRY_BASE_THREAD_H_

#include <sched.h>

#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace ferry {

// Runs `body` on a new thread called `name` (at most 15 characters, as top and gdb show it). The
// destructor waits for the body to return: signal it to stop first.
class Thread final {
 public:
  // Throws std::system_error, naming the thread and the limits in force, when the system cannot
  // start another thread.
  Thread(std::string name, absl::AnyInvocable<void() &&> body);
  ~Thread();

  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  // Blocks until the body has returned; a second call does nothing.
  void Join();
  // Detaches the thread: it is never joined.
  void Detach();
  // Sets the cores it may run on; a set without an available core changes nothing.
  void SetCores(const cpu_set_t& cores);

 private:
  std::thread thread_;
};

}  // namespace ferry

#endif  // FERRY_BASE_THREAD_H_
