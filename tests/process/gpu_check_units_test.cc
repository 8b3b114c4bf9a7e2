// SPDX-License-Identifier: Apache-2.0
// gpu_check's device files that stay open, and the GPUs that it shows its parts.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>

#include "benchmarks/gpu/driver_keeper.h"
#include "benchmarks/gpu/visible_gpus.h"

namespace ferry::check {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

size_t OpenFiles() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST(DriverKeeper, DeviceFilesOfGpusStayOpen) {
  std::string folder = testing::TempDir() + "/ferry_keeper_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  for (const char* const name : {"nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset",
                                 "nvidia", "nvidia0x", "xnvidia0"}) {
    std::ofstream(folder + "/" + name) << name;
  }
  // It cannot be opened for writing.
  std::filesystem::create_directory(folder + "/nvidia2");
  const size_t before = OpenFiles();
  {
    const DriverKeeper keeper(folder);
    EXPECT_THAT(keeper.names(), ElementsAre("nvidia0", "nvidia1", "nvidiactl"));
    EXPECT_EQ(OpenFiles(), before + 3);
  }
  EXPECT_EQ(OpenFiles(), before);
  std::filesystem::remove_all(folder);
  EXPECT_THAT(DriverKeeper(folder).names(), IsEmpty());
}

TEST(FirstVisibleGpus, NamesAndOrderStay) {
  EXPECT_EQ(FirstVisibleGpus(nullptr, 2), "0,1");
  EXPECT_EQ(FirstVisibleGpus("5,3,1", 2), "5,3");
  EXPECT_EQ(FirstVisibleGpus("GPU-1b2c,GPU-3d4e,0", 2), "GPU-1b2c,GPU-3d4e");
  EXPECT_EQ(FirstVisibleGpus("MIG-a/1/0", 2), "MIG-a/1/0");
  EXPECT_EQ(FirstVisibleGpus("2,0", 2), "2,0");
}

}  // namespace
}  // namespace ferry::check
