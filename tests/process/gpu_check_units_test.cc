// SPDX-License-Identifier: Apache-2.0
// gpu_check's device files that stay open, the GPUs that it shows its parts, and its time limit.
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

#include "base/clock.h"
#include "benchmarks/gpu/check_sequence.h"
#include "benchmarks/gpu/driver_keeper.h"
#include "benchmarks/gpu/part_report.h"
#include "benchmarks/gpu/visible_gpus.h"

namespace ferry::check {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
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

// A caller that reads this program's output to its end does not wait for a keeper that hangs.
TEST_F(DriverKeeperTest, HoldsNoneOfTheCallersPipesOpen) {
  const auto target = [](const std::string& process, int fd) {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/" + process + "/fd/" + std::to_string(fd), error);
  };
  const DriverKeeper keeper(folder_);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    EXPECT_EQ(target(std::to_string(keeper.process()), fd), "/dev/null") << fd;
  }
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

// A run whose processes take as long as the test says.
class SequenceTest : public testing::Test {
 protected:
  static constexpr absl::Duration kMachineLimit = absl::Seconds(40);
  static constexpr absl::Duration kHang = absl::Hours(1);

  SequenceTest() {
    Add("machine", kMachineLimit, false);
    actions_.open_driver = [this](absl::Duration timeout) {
      const bool hangs = clock_.Now() + driver_takes_ > hangs_from_;
      clock_.Advance(std::min(timeout, hangs ? kHang : driver_takes_));
      return std::string("nvidia0");
    };
    actions_.run_part = [this](const Part& part, const Machine& machine, absl::Time deadline) {
      ran_.push_back(part.name);
      gpus_seen_ = machine.gpu_count;
      Json report = EmptyReport(part);
      report["status"] = Take(part_takes_, deadline) ? "passed" : "killed";
      report["checks"].push_back({{"name", "a"}, {"status", "passed"}});
      if (part.name == "machine") {
        report["facts"]["gpus"] = Json::array();
        for (int i = 0; i < gpus_; ++i) {
          report["facts"]["gpus"].push_back({{"name", "A GPU"}, {"memory_bytes", 1 << 30}});
        }
        if (gpus_ == 0 && report["status"] == "passed") {
          report["facts"]["no_gpu_reason"] = "there is no driver";
        }
      }
      return report;
    };
    actions_.free_bytes = [this](absl::Time deadline) {
      if (deadline - clock_.Now() < absl::Seconds(1) || !Take(query_takes_, deadline)) {
        return std::vector<size_t>();
      }
      if (free_.empty()) return std::vector<size_t>{size_t{1} << 30};
      const size_t free_bytes = free_.front();
      free_.erase(free_.begin());
      return std::vector<size_t>{free_bytes};
    };
    actions_.show_gpus = [](int count) { return std::to_string(count); };
    actions_.store = [this](const Json& result) {
      stored_.push_back(result);
      return can_store_;
    };
    actions_.print = [](const Json&) {};
  }

  void Add(const std::string& name, absl::Duration limit, bool needs_gpu = true) {
    Part part;
    part.name = name;
    part.limit = limit;
    part.needs_gpu = needs_gpu;
    parts_.push_back(part);
  }

  // Lets the time pass; false: until after the deadline, when the killed process does not react.
  bool Take(absl::Duration time, absl::Time deadline) {
    const absl::Duration left = std::max(deadline - clock_.Now(), absl::ZeroDuration());
    if (clock_.Now() + time > hangs_from_) time = kHang;
    if (time <= left) {
      clock_.Advance(time);
      return true;
    }
    clock_.Advance(left + kKillTimeout);
    return false;
  }

  // Returns how long it took.
  absl::Duration Run(absl::Duration limit = kDefaultLimit) {
    const absl::Time began = clock_.Now();
    is_stored_ = RunSequence(parts_, clock_, limit, actions_, result_);
    return clock_.Now() - began;
  }

  FakeClock clock_;
  std::vector<Part> parts_;
  SequenceActions actions_;
  int gpus_ = 1;
  absl::Duration driver_takes_ = absl::Seconds(2);
  absl::Duration part_takes_ = absl::Seconds(5);
  absl::Duration query_takes_ = absl::Seconds(1);
  // Results of the queries, in order; then 1 GiB.
  std::vector<size_t> free_;
  bool can_store_ = true;
  absl::Time hangs_from_ = absl::InfiniteFuture();

  bool is_stored_ = false;
  Json result_ = {{"mode", "full"}};
  std::vector<std::string> ran_;
  std::vector<Json> stored_;
  int gpus_seen_ = 0;
};

// From some moment on, which falls anywhere, every process hangs until it is killed.
TEST_F(SequenceTest, NothingThatHangsExceedsTheLimitByMoreThanTheEnding) {
  for (int i = 0; i < 20; ++i) Add("part" + std::to_string(i), absl::Seconds(30 + 7 * (i % 6)));
  absl::Duration longest;
  for (const absl::Duration part : {absl::Seconds(5), absl::Milliseconds(33'333)}) {
    for (const absl::Duration query : {absl::Milliseconds(100), absl::Seconds(7)}) {
      for (int seconds = 0; seconds < 480; seconds += 7) {
        part_takes_ = part;
        query_takes_ = query;
        hangs_from_ = clock_.Now() + absl::Seconds(seconds);
        result_ = {{"mode", "full"}};
        stored_.clear();
        longest = std::max(longest, Run());
        ASSERT_TRUE(is_stored_);
      }
    }
  }
  EXPECT_LE(longest, kDefaultLimit + kMostAfterLimit);
  // Else this has not tried the worst.
  EXPECT_GE(longest, kDefaultLimit + absl::Seconds(9));
}

TEST_F(SequenceTest, PartWithoutTimeIsSkippedAndSaysSo) {
  Add("first", absl::Seconds(60));
  Add("second", absl::Seconds(60));
  Add("third", absl::Seconds(60));
  part_takes_ = absl::Seconds(4);
  Run(absl::Seconds(13));
  EXPECT_THAT(ran_, ElementsAre("machine", "first"));
  EXPECT_EQ(result_["parts"][1]["status"], "passed");
  EXPECT_EQ(result_["parts"][2]["reason"], "no time was left for it");
  EXPECT_EQ(result_["verdict"], "all parts passed or were skipped");
}

TEST_F(SequenceTest, PartIsKilledAtTheEarlierOfItsOwnLimitAndTheRuns) {
  Add("long", absl::Seconds(3));
  Add("late", absl::Seconds(60));
  part_takes_ = absl::Seconds(20);
  Run(absl::Seconds(40));
  EXPECT_EQ(result_["parts"][1]["status"], "killed");
  EXPECT_EQ(result_["parts"][2]["status"], "killed");
  EXPECT_EQ(result_["verdict"], "long killed, late killed");
}

TEST_F(SequenceTest, MachineIsReportedEvenIfTheDriverTakesTheWholeLimit) {
  Add("first", absl::Seconds(60));
  driver_takes_ = kHang;
  part_takes_ = absl::Seconds(30);
  Run(absl::Seconds(12));
  EXPECT_THAT(ran_, ElementsAre("machine"));
  EXPECT_EQ(result_["parts"][0]["status"], "passed");
  EXPECT_EQ(result_["gpu_count"], 1);
}

TEST_F(SequenceTest, WithoutAGpuOnlyTheMachineRuns) {
  gpus_ = 0;
  Add("first", absl::Seconds(60));
  Run();
  EXPECT_THAT(ran_, ElementsAre("machine"));
  EXPECT_EQ(result_["parts"][1]["reason"], "no GPU: there is no driver");
  EXPECT_EQ(result_["verdict"], "no GPU");
}

TEST_F(SequenceTest, DriverThatHangsIsTheReasonForHavingNoGpu) {
  gpus_ = 0;
  hangs_from_ = clock_.Now() + absl::Seconds(10);
  part_takes_ = absl::Seconds(30);
  Add("first", absl::Seconds(60));
  Run();
  EXPECT_THAT(result_["no_gpu_reason"].get<std::string>(),
              HasSubstr("the driver has not described its GPUs: the part machine killed"));
  EXPECT_EQ(result_["verdict"], "machine killed");
}

TEST_F(SequenceTest, PartsSeeTwoOfManyGpus) {
  gpus_ = 8;
  Add("first", absl::Seconds(60));
  Run();
  EXPECT_EQ(result_["gpu_count"], 8);
  EXPECT_EQ(result_["gpus_of_parts"], "2");
  EXPECT_EQ(gpus_seen_, 2);
}

TEST_F(SequenceTest, MemoryThatDoesNotComeBackFailsThePart) {
  Add("first", absl::Seconds(60));
  Add("second", absl::Seconds(60));
  const size_t all = size_t{2} << 30;
  const size_t less = size_t{1} << 30;
  // The first part's comes back a moment later; the second one's does not.
  free_ = {all, less, all, less, less, less, less};
  Run();
  EXPECT_EQ(result_["parts"][1]["status"], "passed");
  EXPECT_EQ(result_["parts"][2]["status"], "failed");
  EXPECT_THAT(result_["parts"][2]["checks"].back()["reason"].get<std::string>(),
              HasSubstr("1073741824 bytes"));
}

TEST_F(SequenceTest, ResultIsStoredBeforeEachPart) {
  Add("first", absl::Seconds(60));
  Run();
  std::vector<std::string> verdicts;
  for (const Json& each : stored_) verdicts.push_back(each["verdict"].get<std::string>());
  EXPECT_THAT(verdicts, ElementsAre("not finished: it had come to the part of opening the device "
                                    "files",
                                    "not finished: it had come to the part machine",
                                    "not finished: it had come to the part first",
                                    "all parts passed or were skipped"));
}

TEST_F(SequenceTest, ResultThatCannotBeStoredEndsTheRunAtOnce) {
  can_store_ = false;
  Run();
  EXPECT_FALSE(is_stored_);
  EXPECT_THAT(ran_, IsEmpty());
}

}  // namespace
}  // namespace ferry::check
