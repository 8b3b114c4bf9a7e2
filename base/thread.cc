// SPDX-License-Identifier: Apache-2.0
// Named threads.
#include "base/thread.h"

#include <pthread.h>

#include <utility>

namespace ferry {

Thread::Thread(std::string name, absl::AnyInvocable<void() &&> body)
    : thread_([name = name.substr(0, 15), body = std::move(body)]() mutable {
        pthread_setname_np(pthread_self(), name.c_str());
        std::move(body)();
      }) {}

Thread::~Thread() { Join(); }

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

void Thread::Detach() {
  if (thread_.joinable()) thread_.detach();
}

void Thread::SetCores(const cpu_set_t& cores) {
  if (thread_.joinable()) pthread_setaffinity_np(thread_.native_handle(), sizeof(cores), &cores);
}

}  // namespace ferry
