// SPDX-License-Identifier: Apache-2.0
// Named threads.
#include "base/thread.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/thread_room.h"

namespace ferry {

namespace {

std::thread Start(const std::string& name, absl::AnyInvocable<void() &&> body) {
  try {
    return std::thread([name, body = std::move(body)]() mutable {
      pthread_setname_np(pthread_self(), name.c_str());
      std::move(body)();
    });
  } catch (const std::system_error& error) {
    throw std::system_error(
        error.code(), absl::StrCat("cannot start the thread \"", name, "\": ", ThreadLimits()));
  }
}

}  // namespace

Thread::Thread(std::string name, absl::AnyInvocable<void() &&> body)
    : thread_(Start(name.substr(0, 15), std::move(body))) {}

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
