// SPDX-License-Identifier: Apache-2.0
// DriverKeeper: keeps the kernel's driver initialised between two processes that use the GPUs.
#ifndef FERRY_BENCHMARKS_GPU_DRIVER_KEEPER_H_
#define FERRY_BENCHMARKS_GPU_DRIVER_KEEPER_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace ferry::check {

// On a machine without nvidia-persistenced the driver shuts a GPU down when the last process closes
// its device file, and the next cuInit initialises it again, which takes seconds for each. So a
// process holds the files open: one of its own, since opening one initialises the GPU, and may hang
// with it. No context is made: it would take memory of the GPU, and the GPU itself in exclusive
// compute mode.
class DriverKeeper final {
 public:
  // Opens a device file; a descriptor, or -1.
  using OpenFunction = std::function<int(const std::string& path)>;

  // Opens nvidiactl and nvidia0, nvidia1, ... of that folder, as far as they can be. Forks; waits
  // for `timeout` at most, and leaves what hangs behind.
  explicit DriverKeeper(const std::string& folder = "/dev",
                        absl::Duration timeout = absl::Seconds(40),
                        const OpenFunction& open_file = OpenDevice);
  ~DriverKeeper();

  DriverKeeper(const DriverKeeper&) = delete;
  DriverKeeper& operator=(const DriverKeeper&) = delete;

  // Names of the files that are open, in order; none: the driver is not kept.
  const std::vector<std::string>& names() const { return names_; }
  // The file that had not been opened in time; empty: all were.
  const std::string& hanging() const { return hanging_; }
  // The process that holds them; for tests.
  pid_t process() const { return process_; }

  static int OpenDevice(const std::string& path);

 private:
  std::vector<std::string> names_;
  std::string hanging_;
  pid_t process_ = -1;
};

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_DRIVER_KEEPER_H_
