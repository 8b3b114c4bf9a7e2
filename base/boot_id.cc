// SPDX-License-Identifier: Apache-2.0
// Reads the kernel's boot id.
#include "base/boot_id.h"

#include <fstream>

namespace ferry {

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace ferry
