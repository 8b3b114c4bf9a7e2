// SPDX-License-Identifier: Apache-2.0
// Reads the thread limits, and probes them by starting threads.
#include "base/thread_room.h"

#include <sys/resource.h>

#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "base/usable_resources.h"

namespace ferry {
namespace {

// "unlimited", or the number.
std::string LimitText(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit.rlim_cur);
}

}  // namespace

std::string ThreadLimits() {
  const UsableResources& usable = Usable();
  return absl::StrCat(
      "processes and threads (ulimit -u) ", LimitText(RLIMIT_NPROC), ", address space (ulimit -v) ",
      LimitText(RLIMIT_AS), " bytes, stack (ulimit -s) ", LimitText(RLIMIT_STACK),
      " bytes, and the control group's pids.max ",
      usable.threads == 0 ? "unlimited"
                          : absl::StrCat(usable.threads, " (", usable.thread_limit, ")"));
}

absl::Status CheckThreadRoom(int count) {
  absl::Notification over;
  std::vector<std::thread> threads;
  std::string why;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&over] { over.WaitForNotification(); });
    }
  } catch (const std::system_error& error) {
    why = error.code().message();
  }
  over.Notify();
  for (std::thread& thread : threads) thread.join();
  if (why.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "only ", threads.size(), " more threads can be created, but this process needs about ", count,
      ": ", ThreadLimits(), ": ", why));
}

}  // namespace ferry
