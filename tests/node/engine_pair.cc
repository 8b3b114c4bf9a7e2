// SPDX-License-Identifier: Apache-2.0
// Reads /proc of this process.
#include "tests/node/engine_pair.h"

#include <filesystem>
#include <fstream>

namespace ferry {

Footprint Footprint::Now() {
  Footprint now;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++now.descriptors;
  }
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
    ++now.threads;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:ferry") != std::string::npos) ++now.mappings;
  }
  return now;
}

}  // namespace ferry
