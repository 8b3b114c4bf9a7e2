// SPDX-License-Identifier: Apache-2.0
// gpu_check's device files that stay open, and the GPUs that it shows its parts.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <gmock/gmock.h>

#include "benchmarks/gpu/driver_keeper.h"
#include "benchmarks/gpu/visible_gpus.h"

namespace ferry::check {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> OpenFilesOf(pid_t process, const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  const std::string of_process = "/proc/" + std::to_string(process) + "/fd";
  for (const auto& each : std::filesystem::directory_iterator(of_process, error)) {
    const std::filesystem::path target = std::filesystem::read_symlink(each.path(), error);
    if (target.parent_path() == folder) found.push_back(target.filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

class DriverKeeperTest : public testing::Test {
 protected:
  DriverKeeperTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    for (const char* const name : {"nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm",
                                   "nvidia-modeset", "nvidia", "nvidia0x", "xnvidia0"}) {
      std::ofstream(folder_ + "/" + name) << name;
    }
    // It cannot be opened for writing.
    std::filesystem::create_directory(folder_ + "/nvidia2");
  }
  ~DriverKeeperTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_ =
      std::filesystem::weakly_canonical(testing::TempDir() + "/ferry_keeper_XXXXXX").string();
};

TEST_F(DriverKeeperTest, DeviceFilesOfGpusStayOpen) {
  pid_t process = -1;
  {
    const DriverKeeper keeper(folder_);
    process = keeper.process();
    EXPECT_THAT(keeper.names(), ElementsAre("nvidia0", "nvidia1", "nvidiactl"));
    EXPECT_EQ(keeper.hanging(), "");
    EXPECT_EQ(OpenFilesOf(process, folder_), keeper.names());
    EXPECT_THAT(OpenFilesOf(getpid(), folder_), IsEmpty());
  }
  EXPECT_EQ(kill(process, 0), -1) << "it is gone";
}

TEST_F(DriverKeeperTest, FileThatHangsIsNamed) {
  const DriverKeeper keeper(folder_, absl::Milliseconds(500), [](const std::string& path) {
    if (path.back() == '1') pause();
    return DriverKeeper::OpenDevice(path);
  });
  EXPECT_THAT(keeper.names(), ElementsAre("nvidia0"));
  EXPECT_EQ(keeper.hanging(), "nvidia1");
}

TEST_F(DriverKeeperTest, WithoutDeviceFilesThereIsNoProcess) {
  const DriverKeeper keeper(folder_ + "/none");
  EXPECT_THAT(keeper.names(), IsEmpty());
  EXPECT_EQ(keeper.process(), -1);
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
