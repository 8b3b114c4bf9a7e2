// SPDX-License-Identifier: Apache-2.0
// DriverKeeper: keeps the kernel's driver initialised between two processes that use the GPUs.
#ifndef FERRY_BENCHMARKS_GPU_DRIVER_KEEPER_H_
#define FERRY_BENCHMARKS_GPU_DRIVER_KEEPER_H_

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace ferry::check {

// On a machine without nvidia-persistenced the driver shuts a GPU down when the last process closes
// its device file, and the next cuInit initialises it again, which takes seconds for each. So the
// files stay open here. No context is made: it would take memory of the GPU, and the GPU itself in
// exclusive compute mode.
class DriverKeeper final {
 public:
  // Opens nvidiactl and nvidia0, nvidia1, ... of that folder, as far as they can be.
  explicit DriverKeeper(const std::string& folder = "/dev");

  DriverKeeper(const DriverKeeper&) = delete;
  DriverKeeper& operator=(const DriverKeeper&) = delete;

  // Names of the files that are open, in order; none: the driver is not kept.
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::vector<UniqueFd> files_;
};

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_DRIVER_KEEPER_H_
