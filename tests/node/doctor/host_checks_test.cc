// SPDX-License-Identifier: Apache-2.0
// Common machines and containers, and the findings for each.
#include "doctor/host_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/node/doctor/finding_matcher.h"
#include "tests/node/doctor/made_up_host.h"

namespace ferry::doctor {
namespace {

void AddRdma(MadeUpHost& host) {
  host.files["/sys/class/infiniband/mlx5_0/ports/1/state"] = "4: ACTIVE";
}

TEST(HostChecks, HealthyMachineIsOkInEveryLine) {
  for (const Finding& finding : CheckHost(MadeUpHost())) {
    EXPECT_EQ(finding.status, FindingStatus::kOk) << finding;
  }
}

TEST(HostChecks, ContainerIsNamedByItsMark) {
  MadeUpHost host;
  host.files["/.dockerenv"] = "";
  EXPECT_THAT(CheckKernel(host), IsOk("Linux 6.1.0-13-amd64, in a container (/.dockerenv)"));
}

TEST(HostChecks, WslAndGVisorLackIpc) {
  MadeUpHost host;
  host.files["/proc/sys/kernel/osrelease"] = "5.15.90.1-microsoft-standard-WSL2";
  EXPECT_THAT(CheckKernel(host), IsWarning("WSL", "staged"));
  host.files["/proc/sys/kernel/osrelease"] = "4.4.0";
  host.files["/proc/version"] = "Linux version 4.4.0 gVisor";
  EXPECT_THAT(CheckKernel(host), IsWarning("gVisor", "staged"));
}

TEST(HostChecks, WithoutABootId_ProcessesOfThisMachineAreUnknown) {
  MadeUpHost host;
  host.files.erase("/proc/sys/kernel/random/boot_id");
  EXPECT_THAT(CheckBootId(host), IsWarning("on one machine", "/proc"));
  host.files["/proc/sys/kernel/random/boot_id"] = "";
  EXPECT_THAT(CheckBootId(host), IsWarning("tells none", "TCP"));
}

TEST(HostChecks, AnotherPidNamespaceStagesCudaMalloc) {
  MadeUpHost host;
  host.links["/proc/self/ns/pid"] = "pid:[4026532281]";
  EXPECT_THAT(CheckPidNamespace(host),
              IsOk("pid:[4026532281]: with processes of other containers"));
  host.links.clear();
  EXPECT_THAT(CheckPidNamespace(host), WasSkipped("No such file"));
}

TEST(HostChecks, OnlyUsableCoresCount) {
  MadeUpHost host;
  host.files["/proc/self/status"] = "Cpus_allowed_list:\t0-3,8,10-11\n";
  EXPECT_THAT(CheckCores(host), IsOk("7 cores (0-3,8,10-11)"));
  host.files["/proc/self/status"] = "Cpus_allowed_list:\t5\n";
  EXPECT_THAT(CheckCores(host), IsWarning("1 core (5)", "two or more"));
  host.files["/proc/self/status"] = "Cpus_allowed_list:\t3-1\n";
  EXPECT_THAT(CheckCores(host), WasSkipped("does not tell"));
}

TEST(HostChecks, ContainersQuotaCountsMoreThanItsCores) {
  MadeUpHost host;
  host.files["/sys/fs/cgroup/cpu.max"] = "max 100000";
  EXPECT_THAT(CheckCores(host), IsOk("8 cores (0-7)"));
  host.files["/sys/fs/cgroup/cpu.max"] = "400000 100000";
  EXPECT_THAT(CheckCores(host), IsOk("time for 4.0 of them"));
  host.files["/sys/fs/cgroup/cpu.max"] = "150000 100000";
  EXPECT_THAT(CheckCores(host), IsWarning("time for 1.5 of them", "resources.limits.cpu"));
}

TEST(HostChecks, AContainersMemoryLimit_IsReported) {
  MadeUpHost host;
  EXPECT_THAT(CheckMemory(host), IsOk("32 GiB; by default half"));
  host.files["/sys/fs/cgroup/memory.max"] = "2147483648";
  EXPECT_THAT(CheckMemory(host), IsOk("2 GiB of the machine's 32 GiB (/sys/fs/cgroup/memory.max)"));
  host.files["/sys/fs/cgroup/memory.high"] = "104857600";
  EXPECT_THAT(CheckMemory(host), IsWarning("100 MiB of the machine's", "resources.limits.memory"));
}

TEST(HostChecks, UnknownMemory_IsSkipped) {
  MadeUpHost host;
  host.files.erase("/proc/meminfo");
  EXPECT_THAT(CheckMemory(host), WasSkipped("does not tell"));
}

TEST(HostChecks, FewThreads_AreAWarning) {
  MadeUpHost host;
  EXPECT_THAT(CheckThreads(host), IsOk("ulimit -u unlimited"));
  host.limits[RLIMIT_NPROC] = {4096, 4096};
  EXPECT_THAT(CheckThreads(host), IsOk("ulimit -u 4096"));
  host.files["/sys/fs/cgroup/pids.max"] = "100";
  EXPECT_THAT(CheckThreads(host),
              IsWarning("100 in the control group (/sys/fs/cgroup/pids.max)", "--pids-limit"));
  host.files["/sys/fs/cgroup/pids.max"] = "max";
  EXPECT_THAT(CheckThreads(host), IsOk("ulimit -u 4096"));
}

TEST(HostChecks, PagesOfTheArenaAreReported) {
  MadeUpHost host;
  EXPECT_THAT(CheckHostArena(host), IsOk("transparent huge pages (shmem_enabled: advise)"));
  // The observation counts, and not the kernel's setting.
  host.files["/sys/kernel/mm/transparent_hugepage/shmem_enabled"] = "always advise [never] deny";
  EXPECT_THAT(CheckHostArena(host), IsOk("transparent huge pages (shmem_enabled: never)"));
  host.shared_memory = PageKind::kOrdinary;
  EXPECT_THAT(CheckHostArena(host), IsOk("4 KiB pages (shmem_enabled: never)"));
  host.shared_memory = PageKind::kPool;
  EXPECT_THAT(CheckHostArena(host), IsOk("pool"));
  host.files["/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"] = "512";
  EXPECT_THAT(CheckHostArena(host), IsOk("1 GiB of them free"));
  host.shared_memory = absl::UnavailableError("memfd_create: Function not implemented");
  EXPECT_THAT(CheckHostArena(host), IsWarning("shm: not possible: memfd_create", "seccomp"));
}

TEST(HostChecks, DevShmMustExist) {
  MadeUpHost host;
  host.spaces.clear();
  EXPECT_THAT(CheckDevShm(host), IsWrong("/dev/shm: No such file", "--shm-size"));
  host.environment["NCCL_SHM_DISABLE"] = "1";
  EXPECT_THAT(CheckDevShm(host), IsOk("does without"));
}

TEST(HostChecks, DockersDevShmIsSmall) {
  MadeUpHost host;
  host.spaces["/dev/shm"] = {64 * kMiB, 64 * kMiB};
  EXPECT_THAT(CheckDevShm(host), IsWarning("64 MiB, 64 MiB free", "--ipc=host"));
  host.spaces["/dev/shm"] = {64 * kMiB + 4096, 64 * kMiB};
  EXPECT_THAT(CheckDevShm(host), IsOk("free"));
}

TEST(HostChecks, DevShmMayBeFull) {
  MadeUpHost host;
  host.spaces["/dev/shm"] = {32 * kGiB, 3 * kMiB};
  EXPECT_THAT(CheckDevShm(host), IsWrong("32 GiB, 3 MiB free", "ls /dev/shm"));
}

TEST(HostChecks, MemlockMattersWhereThereIsRdma) {
  MadeUpHost host;
  host.limits[RLIMIT_MEMLOCK] = {64 * kKiB, 64 * kKiB};
  EXPECT_THAT(CheckMemlock(host), IsOk("64 KiB; only RDMA devices"));
  AddRdma(host);
  EXPECT_THAT(CheckMemlock(host), IsWrong("64 KiB: NCCL cannot register", "ulimit -l unlimited"));
  host.limits[RLIMIT_MEMLOCK] = {4 * kGiB, kUnlimited};
  EXPECT_THAT(CheckMemlock(host), IsWarning("4 GiB, at most unlimited", "memlock=-1"));
  host.limits[RLIMIT_MEMLOCK] = {kUnlimited, kUnlimited};
  EXPECT_THAT(CheckMemlock(host), IsOk("unlimited"));
}

TEST(HostChecks, MemlockDoesNotMatterWhenRdmaIsOff) {
  MadeUpHost host;
  AddRdma(host);
  host.limits[RLIMIT_MEMLOCK] = {64 * kKiB, 64 * kKiB};
  host.environment["NCCL_IB_DISABLE"] = "1";
  EXPECT_THAT(CheckMemlock(host), IsOk("none is used"));
}

TEST(HostChecks, FewOpenFilesAreALimitOfLargeJobs) {
  MadeUpHost host;
  host.limits[RLIMIT_NOFILE] = {1024, 4096 * 256};
  EXPECT_THAT(CheckOpenFiles(host), IsWarning("1024, at most 1048576", "ulimit -n 1048576"));
  host.limits[RLIMIT_NOFILE] = {1024, 1024};
  EXPECT_THAT(CheckOpenFiles(host), IsWarning("1024: few", "nofile=65536"));
  host.limits.clear();
  EXPECT_THAT(CheckOpenFiles(host), WasSkipped("getrlimit"));
}

}  // namespace
}  // namespace ferry::doctor
