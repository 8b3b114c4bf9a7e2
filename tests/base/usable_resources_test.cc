// SPDX-License-Identifier: Apache-2.0
// Resources that control groups of versions 1 and 2 leave to a process.
#include "base/usable_resources.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace ferry {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// A machine of 64 GiB and 16 processors, with these files besides.
UsableResources Of(std::map<std::string, std::string> files) {
  files.emplace("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        1024 kB\n");
  files.emplace("/proc/self/status", "Name:\tferry\nCpus_allowed_list:\t0-15\n");
  return ReadUsableResources([&files](const std::string& path) { return files[path]; });
}

constexpr char kV2Mount[] =
    "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kV1Mounts[] =
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:12 - cgroup cgroup rw,memory\n"
    "38 31 0:33 / /sys/fs/cgroup/pids rw shared:13 - cgroup cgroup rw,pids\n";

TEST(UsableResources, NoControlGroups_IsTheMachine) {
  const UsableResources usable =
      Of({{"/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"}});
  EXPECT_EQ(usable.memory_bytes, 64 * kGiB);
  EXPECT_EQ(usable.machine_memory_bytes, 64 * kGiB);
  EXPECT_EQ(usable.memory_limit, "");
  EXPECT_EQ(usable.processors, 16);
  EXPECT_EQ(usable.processor_quota, 0);
  EXPECT_EQ(usable.threads, 0);
}

// The process's own limits, in the format of /proc/self/limits.
std::string LimitsFile(const std::string& data, const std::string& address_space) {
  return "Limit                     Soft Limit           Hard Limit           Units     \n"
         "Max cpu time              unlimited            unlimited            seconds   \n"
         "Max data size             " +
         data + "            unlimited            bytes     \nMax address space         " +
         address_space + "            unlimited            bytes     \n";
}

TEST(UsableResources, LimitsOfTheProcess_TheLeastCounts) {
  const struct {
    const char* data;
    const char* address_space;
    uint64_t bytes;
    const char* limit;
  } kCases[] = {
      {"unlimited", "unlimited", 2 * kGiB, "/sys/fs/cgroup/memory.max"},
      {"unlimited", "122880000", 122880000, "ulimit -v"},
      {"104857600", "122880000", 104857600, "ulimit -d"},
      {"122880000", "104857600", 104857600, "ulimit -v"},
      {"122880000", "unlimited", 122880000, "ulimit -d"},
      {"unlimited", "4294967296", 2 * kGiB, "/sys/fs/cgroup/memory.max"},
      {"no number", "0", 2 * kGiB, "/sys/fs/cgroup/memory.max"},
  };
  for (const auto& each : kCases) {
    const UsableResources usable =
        Of({{"/proc/self/mountinfo", kV2Mount},
            {"/proc/self/cgroup", "0::/\n"},
            {"/proc/self/limits", LimitsFile(each.data, each.address_space)},
            {"/sys/fs/cgroup/memory.max", "2147483648\n"}});
    EXPECT_EQ(usable.memory_bytes, each.bytes) << each.data << " " << each.address_space;
    EXPECT_EQ(usable.memory_limit, each.limit) << each.data << " " << each.address_space;
    EXPECT_EQ(usable.machine_memory_bytes, 64 * kGiB);
  }
}

// As in a container with a cgroup namespace: its own group is the root.
TEST(UsableResources, V2AtTheRoot_IsTheLimit) {
  const UsableResources usable = Of({{"/proc/self/mountinfo", kV2Mount},
                                     {"/proc/self/cgroup", "0::/\n"},
                                     {"/sys/fs/cgroup/memory.max", "2147483648\n"},
                                     {"/sys/fs/cgroup/memory.high", "max\n"},
                                     {"/sys/fs/cgroup/cpu.max", "250000 100000\n"},
                                     {"/sys/fs/cgroup/pids.max", "100\n"}});
  EXPECT_EQ(usable.memory_bytes, 2 * kGiB);
  EXPECT_EQ(usable.memory_limit, "/sys/fs/cgroup/memory.max");
  EXPECT_EQ(usable.machine_memory_bytes, 64 * kGiB);
  EXPECT_EQ(usable.processors, 3);
  EXPECT_EQ(usable.processor_quota, 2.5);
  EXPECT_EQ(usable.allowed_processors, 16);
  EXPECT_EQ(usable.threads, 100);
  EXPECT_EQ(usable.thread_limit, "/sys/fs/cgroup/pids.max");
}

// In systemd's hierarchy of slices each level may limit those below it.
TEST(UsableResources, V2Nested_TheLeastOfAllLevelsCounts) {
  const std::string group = "/sys/fs/cgroup/system.slice/job.scope/step";
  const UsableResources usable =
      Of({{"/proc/self/mountinfo", kV2Mount},
          {"/proc/self/cgroup", "0::/system.slice/job.scope/step\n"},
          {group + "/memory.max", "max\n"},
          {group + "/cpu.max", "800000 100000\n"},
          {"/sys/fs/cgroup/system.slice/job.scope/memory.max", "8589934592\n"},
          {"/sys/fs/cgroup/system.slice/job.scope/memory.high", "6442450944\n"},
          {"/sys/fs/cgroup/system.slice/job.scope/cpu.max", "max 100000\n"},
          {"/sys/fs/cgroup/system.slice/memory.max", "17179869184\n"},
          {"/sys/fs/cgroup/system.slice/cpu.max", "50000 100000\n"},
          {"/sys/fs/cgroup/other.slice/memory.max", "1\n"}});
  EXPECT_EQ(usable.memory_bytes, 6 * kGiB);
  EXPECT_EQ(usable.memory_limit, "/sys/fs/cgroup/system.slice/job.scope/memory.high");
  EXPECT_EQ(usable.processors, 1);
  EXPECT_EQ(usable.processor_limit, "/sys/fs/cgroup/system.slice/cpu.max");
}

TEST(UsableResources, V1_IsTheLimit) {
  const std::string job = "/slurm/uid_1000/job_7";
  const UsableResources usable =
      Of({{"/proc/self/mountinfo", kV1Mounts},
          {"/proc/self/cgroup",
           "9:pids:" + job + "\n4:memory:" + job + "\n1:cpu,cpuacct:" + job + "\n"},
          {"/sys/fs/cgroup/memory" + job + "/memory.limit_in_bytes", "9223372036854771712\n"},
          {"/sys/fs/cgroup/memory/slurm/uid_1000/memory.limit_in_bytes", "4294967296\n"},
          {"/sys/fs/cgroup/cpu,cpuacct" + job + "/cpu.cfs_quota_us", "400000\n"},
          {"/sys/fs/cgroup/cpu,cpuacct" + job + "/cpu.cfs_period_us", "100000\n"},
          {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
          {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
          {"/sys/fs/cgroup/pids" + job + "/pids.max", "max\n"}});
  EXPECT_EQ(usable.memory_bytes, 4 * kGiB);
  EXPECT_EQ(usable.memory_limit, "/sys/fs/cgroup/memory/slurm/uid_1000/memory.limit_in_bytes");
  EXPECT_EQ(usable.processors, 4);
  EXPECT_EQ(usable.threads, 0);
}

TEST(UsableResources, V1WithoutALimit_IsTheMachine) {
  const UsableResources usable =
      Of({{"/proc/self/mountinfo", kV1Mounts},
          {"/proc/self/cgroup", "4:memory:/\n1:cpu,cpuacct:/\n"},
          {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}});
  EXPECT_EQ(usable.memory_bytes, 64 * kGiB);
  EXPECT_EQ(usable.memory_limit, "");
}

// Docker without a namespace of control groups: the group's path is the host's, and its mount shows
// the group itself.
TEST(UsableResources, V1MountShowsTheGroup_IsFoundThere) {
  const UsableResources usable =
      Of({{"/proc/self/mountinfo",
           "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"},
          {"/proc/self/cgroup", "4:memory:/docker/abc\n"},
          {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"}});
  EXPECT_EQ(usable.memory_bytes, kGiB);
}

// The controllers are version 1's, and an empty hierarchy of version 2 is beside them.
TEST(UsableResources, Hybrid_BothAreRead) {
  const UsableResources usable = Of(
      {{"/proc/self/mountinfo",
        std::string(kV1Mounts) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
       {"/proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/\n0::/session\n"},
       {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3221225472\n"},
       {"/sys/fs/cgroup/unified/session/cpu.max", "100000 100000\n"}});
  EXPECT_EQ(usable.memory_bytes, 3 * kGiB);
  EXPECT_EQ(usable.processors, 1);
  EXPECT_EQ(usable.processor_limit, "/sys/fs/cgroup/unified/session/cpu.max");
}

TEST(UsableResources, Garbage_IsNoLimit) {
  for (const char* const text :
       {"", "\n", "unlimited", "-5", "0", "1e9", "99999999999999999999", "12 34"}) {
    const UsableResources usable = Of({{"/proc/self/mountinfo", kV2Mount},
                                       {"/proc/self/cgroup", "0::/\n"},
                                       {"/sys/fs/cgroup/memory.max", text},
                                       {"/sys/fs/cgroup/cpu.max", text},
                                       {"/sys/fs/cgroup/pids.max", text}});
    EXPECT_EQ(usable.memory_bytes, 64 * kGiB) << text;
    EXPECT_EQ(usable.threads, 0) << text;
  }
  for (const char* const text : {"0 100000", "100000 0", "-1 100000", "x y", "100000"}) {
    const UsableResources usable = Of({{"/proc/self/mountinfo", kV2Mount},
                                       {"/proc/self/cgroup", "0::/\n"},
                                       {"/sys/fs/cgroup/cpu.max", text}});
    EXPECT_EQ(usable.processors, 16) << text;
  }
  const UsableResources usable = Of({{"/proc/self/mountinfo", "cgroup\n - \n1 2 3 - cgroup2\n"},
                                     {"/proc/self/cgroup", "::::\n0\n\n"}});
  EXPECT_EQ(usable.memory_bytes, 64 * kGiB);
}

// Orchestrators write a limit above the machine's resources to mean all of them.
TEST(UsableResources, LimitAboveTheMachine_IsTheMachine) {
  const UsableResources usable = Of({{"/proc/self/mountinfo", kV2Mount},
                                     {"/proc/self/cgroup", "0::/\n"},
                                     {"/sys/fs/cgroup/memory.max", "137438953472\n"},
                                     {"/sys/fs/cgroup/cpu.max", "6400000 100000\n"}});
  EXPECT_EQ(usable.memory_bytes, 64 * kGiB);
  EXPECT_EQ(usable.memory_limit, "");
  EXPECT_EQ(usable.processors, 16);
}

TEST(UsableResources, NoProc_LeavesOneProcessorAndUnknownMemory) {
  const UsableResources usable = ReadUsableResources([](const std::string&) { return ""; });
  EXPECT_EQ(usable.memory_bytes, 0u);
  EXPECT_EQ(usable.processors, 1);
  EXPECT_EQ(usable.allowed_processors, 0);
}

// taskset and cpusets.
TEST(UsableResources, FewerAllowedProcessorsThanTheQuota_AreTheResult) {
  const UsableResources usable = Of({{"/proc/self/status", "Cpus_allowed_list:\t2,5-6\n"},
                                     {"/proc/self/mountinfo", kV2Mount},
                                     {"/proc/self/cgroup", "0::/\n"},
                                     {"/sys/fs/cgroup/cpu.max", "800000 100000\n"}});
  EXPECT_EQ(usable.processors, 3);
  EXPECT_EQ(usable.WithinQuota(100), 8);
}

TEST(UsableResources, ThisProcess_HasSome) {
  EXPECT_GT(Usable().memory_bytes, 0u);
  EXPECT_GE(Usable().processors, 1);
  EXPECT_EQ(ShareOfMemory(1, 2), 1u);
  EXPECT_EQ(ShareOfMemory(~size_t{0}, 2), Usable().memory_bytes / 2);
}

}  // namespace
}  // namespace ferry
