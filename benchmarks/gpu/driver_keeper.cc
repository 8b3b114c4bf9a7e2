// SPDX-License-Identifier: Apache-2.0
// Finds and opens the device files.
#include "benchmarks/gpu/driver_keeper.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ferry::check {
namespace {

// "nvidiactl" and "nvidia0", but not "nvidia-uvm" or "nvidia-modeset".
bool IsGpuFile(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "nvidia")) return false;
  return name == "ctl" ||
         (!name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit));
}

}  // namespace

DriverKeeper::DriverKeeper(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (IsGpuFile(name)) found.push_back(std::move(name));
  }
  std::sort(found.begin(), found.end());
  for (std::string& name : found) {
    UniqueFd file(open((folder + "/" + name).c_str(), O_RDWR | O_CLOEXEC));
    if (!file.valid()) continue;
    names_.push_back(std::move(name));
    files_.push_back(std::move(file));
  }
}

}  // namespace ferry::check
