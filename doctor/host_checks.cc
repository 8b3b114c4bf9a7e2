// SPDX-License-Identifier: Apache-2.0
// Limits and settings that make jobs fail, and how to fix each.
#include "doctor/host_checks.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/usable_resources.h"
#include "doctor/bytes_text.h"
#include "tensor/memory_segment.h"

namespace ferry::doctor {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Docker's default, with which NCCL's initialization fails in jobs of more than a few ranks.
// Source: NVIDIA NCCL user guide, "Troubleshooting", Shared memory.
constexpr uint64_t kSmallDevShm = 64 * kMiB;
// NCCL uses about 10 MiB for each pair of neighbours; with less its initialization fails.
constexpr uint64_t kFullDevShm = 16 * kMiB;
// Pinned memory that network cards read and write; NCCL's buffers alone are a few hundred MiB.
constexpr uint64_t kLittleMemlock = 512 * kMiB;
// NCCL opens dozens of files per peer, and Ferry some.
constexpr uint64_t kFewFiles = 4096;
constexpr uint64_t kLittleMemory = 512 * kMiB;
// A Ferry process has about twenty, including gRPC's, and jobs run several processes per machine.
constexpr uint64_t kFewThreads = 512;
// The inode of the first pid namespace. Source: Linux, include/linux/proc_ns.h.
constexpr char kHostPidNamespace[] = "pid:[4026531836]";

// Returns the value of a line "Name:\tvalue" of a file in /proc, or an empty string.
std::string FieldOf(const std::string& text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, ":")) {
      return std::string(absl::StripAsciiWhitespace(line));
    }
  }
  return "";
}

// Returns the evidence that this runs in a container, or an empty string.
std::string ContainerMark(const HostReader& host) {
  if (host.ReadFile("/.dockerenv").ok()) return "/.dockerenv";
  if (host.ReadFile("/run/.containerenv").ok()) return "/run/.containerenv";
  for (const char* name : {"KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_NAME"}) {
    if (host.Environment(name)) return name;
  }
  return "";
}

bool HasRdma(const HostReader& host) {
  const auto devices = host.ListFolder("/sys/class/infiniband");
  return devices.ok() && !devices->empty() && host.Environment("NCCL_IB_DISABLE") != "1";
}

UsableResources UsableOf(const HostReader& host) {
  return ReadUsableResources(
      [&host](const std::string& path) { return host.ReadFile(path).value_or(""); });
}

// Returns the bracketed value of "always [never] advise".
std::string Chosen(const std::string& text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return text.substr(open + 1, close - open - 1);
}

std::string LimitText(uint64_t value) {
  return value == kUnlimited ? "unlimited" : BytesText(value);
}

}  // namespace

Finding CheckKernel(const HostReader& host) {
  const auto release = host.ReadFile("/proc/sys/kernel/osrelease");
  std::string seen = absl::StrCat("Linux ", release.ok() ? *release : "of an unknown release");
  const std::string mark = ContainerMark(host);
  if (!mark.empty()) absl::StrAppend(&seen, ", in a container (", mark, ")");
  if (release.ok() && absl::StrContains(absl::AsciiStrToLower(*release), "microsoft")) {
    return Warning("kernel", absl::StrCat(seen, ", under WSL"),
                   "expect GPU memory to be staged: drivers under WSL have no IPC");
  }
  const auto version = host.ReadFile("/proc/version");
  if (version.ok() && absl::StrContains(absl::AsciiStrToLower(*version), "gvisor")) {
    return Warning("kernel", absl::StrCat(seen, ", played by gVisor"),
                   "expect GPU memory to be staged: take another runtime class for GPU jobs");
  }
  return Ok("kernel", std::move(seen));
}

Finding CheckBootId(const HostReader& host) {
  const auto id = host.ReadFile("/proc/sys/kernel/random/boot_id");
  if (id.ok() && !id->empty()) return Ok("boot id", *id);
  return Warning("boot id",
                 absl::StrCat("the kernel tells none",
                              id.ok() ? "" : absl::StrCat(" (", id.status().message(), ")"),
                              ", so processes do not know that they are on one machine"),
                 "mount /proc whole; until then tensors go over TCP even within this machine");
}

Finding CheckPidNamespace(const HostReader& host) {
  const auto self = host.ReadLink("/proc/self/ns/pid");
  if (!self.ok()) {
    return Skipped("pid namespace", absl::StrCat("not known: ", self.status().message()));
  }
  if (*self == kHostPidNamespace) return Ok("pid namespace", "the machine's");
  return Ok("pid namespace",
            absl::StrCat("a container's, ", *self,
                         ": with processes of other containers only memory of Ferry's own is "
                         "shared, cudaMalloc's is staged (hostPID or shareProcessNamespace "
                         "changes that)"));
}

Finding CheckCores(const HostReader& host) {
  const auto status = host.ReadFile("/proc/self/status");
  if (!status.ok()) return Skipped("cores", std::string(status.status().message()));
  const std::string list = FieldOf(*status, "Cpus_allowed_list");
  const UsableResources usable_resources = UsableOf(host);
  const int count = usable_resources.allowed_processors;
  if (count == 0) return Skipped("cores", "the kernel does not tell which may be used");
  std::string seen = absl::StrCat(count, count == 1 ? " core" : " cores", " (", list, ")");
  const double quota = usable_resources.processor_quota;
  if (quota > 0 && quota < count) {
    absl::StrAppend(&seen, ", and time for ", absl::StrFormat("%.1f", quota), " of them (",
                    usable_resources.processor_limit, ")");
  }
  const double usable = quota > 0 ? std::min<double>(quota, count) : count;
  if (usable < 2) {
    return Warning("cores", std::move(seen),
                   "give each process two or more: communication waits for a core behind the "
                   "program itself (--cpus, resources.limits.cpu, --cpus-per-task)");
  }
  return Ok("cores", std::move(seen));
}

Finding CheckMemory(const HostReader& host) {
  const UsableResources usable = UsableOf(host);
  if (usable.memory_bytes == 0) return Skipped("memory", "the kernel does not tell how much it is");
  std::string seen = BytesText(usable.memory_bytes);
  if (!usable.memory_limit.empty()) {
    absl::StrAppend(&seen, " of the machine's ", BytesText(usable.machine_memory_bytes), " (",
                    usable.memory_limit, ")");
  }
  absl::StrAppend(&seen, "; by default half of it at most is for tensors that are handed over");
  if (usable.memory_bytes < kLittleMemory) {
    if (absl::StartsWith(usable.memory_limit, "ulimit")) {
      return Warning("memory", std::move(seen),
                     absl::StrCat("raise it (", usable.memory_limit,
                                  " unlimited): what goes beyond "
                                  "the limit fails"));
    }
    return Warning("memory", std::move(seen),
                   "give the container more (--memory, resources.limits.memory, --mem): what goes "
                   "beyond the limit is killed");
  }
  return Ok("memory", std::move(seen));
}

Finding CheckThreads(const HostReader& host) {
  const UsableResources usable = UsableOf(host);
  const auto limit = host.Limit(RLIMIT_NPROC);
  const bool is_limited = limit.ok() && limit->soft != kUnlimited;
  std::string seen =
      absl::StrCat("ulimit -u ", is_limited ? absl::StrCat(limit->soft) : "unlimited");
  uint64_t least = is_limited ? limit->soft : kUnlimited;
  if (usable.threads > 0) {
    absl::StrAppend(&seen, ", and ", usable.threads, " in the control group (", usable.thread_limit,
                    ")");
    least = std::min(least, static_cast<uint64_t>(usable.threads));
  }
  if (least >= kFewThreads) return Ok("threads", std::move(seen));
  return Warning("threads", absl::StrCat(seen, ": few for processes of some dozen threads each"),
                 "ulimit -u 65536 before it; docker --pids-limit, in Kubernetes the kubelet's "
                 "podPidsLimit, TasksMax in a systemd unit");
}

Finding CheckHostArena(const HostReader& host) {
  const absl::StatusOr<PageKind> pages = host.SharedMemoryPages();
  if (!pages.ok()) {
    // A warning only: everything else keeps working.
    return Warning("host arena",
                   absl::StrCat("shm: not possible: ", pages.status().message(),
                                "; within this machine tensors go over tcp"),
                   "allow memfd_create (a kernel from 3.17 on; a seccomp profile without it), and "
                   "memory of some MiB");
  }
  if (*pages == PageKind::kPool) {
    int64_t free_pages = 0;
    const auto pool = host.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    const bool is_known = pool.ok() && absl::SimpleAtoi(*pool, &free_pages) && free_pages >= 0;
    return Ok(
        "host arena",
        absl::StrCat(
            PageKindName(*pages),
            is_known ? absl::StrCat(", ", BytesText(static_cast<uint64_t>(free_pages) * 2 * kMiB),
                                    " of them free")
                     : ""));
  }
  const auto setting = host.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string policy =
      setting.ok() ? absl::StrCat(" (shmem_enabled: ", Chosen(*setting), ")") : "";
  if (*pages == PageKind::kTransparent) {
    return Ok("host arena", absl::StrCat(PageKindName(*pages), policy));
  }
  return Ok("host arena",
            absl::StrCat("ordinary ", PageKindName(*pages), policy,
                         "; large tensors that are copied gain from huge ones: a kernel from 6.1 "
                         "on, sysctl vm.nr_hugepages, or advise in "
                         "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
}

Finding CheckDevShm(const HostReader& host) {
  const std::string advice =
      "start the container with --shm-size=1g or --ipc=host; in Kubernetes mount an emptyDir with "
      "medium: Memory there; or set NCCL_SHM_DISABLE=1 and let NCCL be slower";
  const bool is_unused = host.Environment("NCCL_SHM_DISABLE") == "1";
  const auto space = host.Space("/dev/shm");
  if (!space.ok()) {
    if (is_unused) return Ok("/dev/shm", "absent, and NCCL does without (NCCL_SHM_DISABLE=1)");
    return Wrong("/dev/shm",
                 absl::StrCat(space.status().message(),
                              "; NCCL and PyTorch's data loaders fail without it, and CUDA has no "
                              "events between processes, so that Ferry's host waits for them"),
                 advice);
  }
  const std::string seen =
      absl::StrCat(BytesText(space->total_bytes), ", ", BytesText(space->free_bytes), " free");
  if (is_unused) return Ok("/dev/shm", absl::StrCat(seen, "; NCCL does not use it"));
  if (space->free_bytes < kFullDevShm) {
    return Wrong("/dev/shm", absl::StrCat(seen, ": too little for NCCL to start"),
                 absl::StrCat("remove what dead processes left there (ls /dev/shm), or ", advice));
  }
  if (space->total_bytes <= kSmallDevShm) {
    return Warning("/dev/shm",
                   absl::StrCat(seen, ": NCCL's start fails with more than a few ranks"), advice);
  }
  return Ok("/dev/shm", seen);
}

Finding CheckMemlock(const HostReader& host) {
  const auto limit = host.Limit(RLIMIT_MEMLOCK);
  if (!limit.ok()) return Skipped("memlock", std::string(limit.status().message()));
  if (limit->soft == kUnlimited) return Ok("memlock", "unlimited");
  std::string seen = LimitText(limit->soft);
  if (limit->hard != limit->soft) absl::StrAppend(&seen, ", at most ", LimitText(limit->hard));
  if (!HasRdma(host)) {
    return Ok("memlock", absl::StrCat(seen, "; only RDMA devices need more, and none is used"));
  }
  const std::string advice =
      "ulimit -l unlimited before the job; docker --ulimit memlock=-1; LimitMEMLOCK=infinity in a "
      "systemd unit (also that of slurmd)";
  if (limit->soft < kLittleMemlock) {
    return Wrong("memlock", absl::StrCat(seen, ": NCCL cannot register memory with RDMA devices"),
                 advice);
  }
  return Warning("memlock", absl::StrCat(seen, ", of which RDMA devices can use up all"), advice);
}

Finding CheckOpenFiles(const HostReader& host) {
  const auto limit = host.Limit(RLIMIT_NOFILE);
  if (!limit.ok()) return Skipped("open files", std::string(limit.status().message()));
  const auto text = [](uint64_t value) {
    return value == kUnlimited ? std::string("unlimited") : absl::StrCat(value);
  };
  std::string seen = text(limit->soft);
  if (limit->hard != limit->soft) absl::StrAppend(&seen, ", at most ", text(limit->hard));
  if (limit->hard < kFewFiles) {
    return Warning("open files", absl::StrCat(seen, ": few for a large job"),
                   "ulimit -n 65536 before it; docker --ulimit nofile=65536");
  }
  if (limit->soft < kFewFiles) {
    return Warning(
        "open files", std::move(seen),
        absl::StrCat("ulimit -n ", limit->hard == kUnlimited ? "65536" : absl::StrCat(limit->hard),
                     " before a large job"));
  }
  return Ok("open files", std::move(seen));
}

std::vector<Finding> CheckHost(const HostReader& host) {
  return {CheckKernel(host),  CheckBootId(host),   CheckPidNamespace(host), CheckCores(host),
          CheckMemory(host),  CheckThreads(host),  CheckHostArena(host),    CheckDevShm(host),
          CheckMemlock(host), CheckOpenFiles(host)};
}

}  // namespace ferry::doctor
