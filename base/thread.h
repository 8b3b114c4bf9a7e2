// SPDX-License-Identifier: Apache-2.0
// Thread: a named thread that joins when it goes.
#ifndef FERRY_BASE_THREAD_H_
#define FERRY_BASE_THREAD_H_

#include <sched.h>

#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace ferry {

// Runs `body` on a new thread called `name` (at most 15 characters, as top and gdb show it).
// The destructor waits for the body to return: tell it to stop first.
class Thread final {
 public:
  // Throws std::system_error, naming the thread and the limits that there are, when the system has
  // no room for one more.
  Thread(std::string name, absl::AnyInvocable<void() &&> body);
  ~Thread();

  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  // Waits for the body to return; a second call does nothing.
  void Join();
  // Leaves it to itself: nobody waits for the body any more.
  void Detach();
  // On which cores it may run; a set without one that it could have changes nothing.
  void SetCores(const cpu_set_t& cores);

 private:
  std::thread thread_;
};

}  // namespace ferry

#endif  // FERRY_BASE_THREAD_H_
