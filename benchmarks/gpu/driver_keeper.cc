// SPDX-License-Identifier: Apache-2.0
// Finds the device files, and the process that opens them.
#include "benchmarks/gpu/driver_keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/unique_fd.h"

namespace ferry::check {
namespace {

// From SIGKILL to the end of a process that does not hang.
constexpr absl::Duration kKeeperEnd = absl::Seconds(1);

// "nvidiactl" and "nvidia0", but not "nvidia-uvm" or "nvidia-modeset".
bool IsGpuFile(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "nvidia")) return false;
  return name == "ctl" ||
         (!name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit));
}

std::vector<std::string> GpuFilesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (IsGpuFile(name)) found.push_back(std::move(name));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

int DriverKeeper::OpenDevice(const std::string& path) {
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

DriverKeeper::DriverKeeper(const std::string& folder, absl::Duration timeout,
                           const OpenFunction& open_file) {
  const std::vector<std::string> found = GpuFilesIn(folder);
  int pipes[2];
  if (found.empty() || pipe2(pipes, O_CLOEXEC) != 0) return;
  const UniqueFd from(pipes[0]);
  UniqueFd to(pipes[1]);
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // One that hangs in the driver outlives this program, and must not hold its caller's pipes
    // open.
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, fd);
    for (const std::string& name : found) {
      const char is_open = open_file(folder + "/" + name) >= 0 ? 1 : 0;
      if (write(to.get(), &is_open, 1) != 1) std::_Exit(1);
    }
    while (true) pause();
  }
  to.Reset();
  if (process_ < 0) return;
  const absl::Time give_up = SteadyClock().Now() + timeout;
  for (const std::string& name : found) {
    char is_open = 0;
    pollfd polled = {from.get(), POLLIN, 0};
    const auto left = absl::ToInt64Milliseconds(give_up - SteadyClock().Now());
    if (poll(&polled, 1, static_cast<int>(std::max<int64_t>(left, 0))) <= 0 ||
        read(from.get(), &is_open, 1) != 1) {
      hanging_ = name;
      return;
    }
    if (is_open != 0) names_.push_back(name);
  }
}

DriverKeeper::~DriverKeeper() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  // One that hangs in the driver may never react.
  const absl::Time give_up = SteadyClock().Now() + kKeeperEnd;
  while (waitpid(process_, nullptr, WNOHANG) == 0 && SteadyClock().Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace ferry::check
