// SPDX-License-Identifier: Apache-2.0
// Explains driver failures and how to fix them.
#include "doctor/gpu_checks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/bounded_text.h"
#include "base/text.h"
#include "doctor/bytes_text.h"

namespace ferry::doctor {
namespace {

bool HidesAll(const GpuFacts& facts) {
  if (!facts.visible_devices) return false;
  const std::string& value = *facts.visible_devices;
  return value.empty() || value == "-1" || value == "NoDevFiles" || value == "void";
}

// Reports why the driver cannot be used.
Finding CheckAbsentDriver(const GpuFacts& facts) {
  const std::string why(facts.cuda.message());
  if (HidesAll(facts) && absl::IsNotFound(facts.cuda)) {
    return Skipped("driver", absl::StrCat("CUDA_VISIBLE_DEVICES=", Quoted(*facts.visible_devices),
                                          " hides every GPU: ", why));
  }
  if (absl::IsUnavailable(facts.cuda)) {
    if (facts.cuda_library && !facts.cuda_library->empty()) {
      return Wrong("driver", why, "set FERRY_CUDA_LIBRARY to a driver's libcuda.so.1, or unset it");
    }
    if (!facts.kernel_driver.empty()) {
      return Wrong("driver",
                   absl::StrCat("the kernel has driver ", facts.kernel_driver, ", but ", why),
                   "start the container with the NVIDIA toolkit (--gpus all, runtimeClassName: "
                   "nvidia); on a machine install libcuda1");
    }
    if (!facts.pci.empty()) {
      return Wrong(
          "driver",
          absl::StrCat("no driver for the GPU at ", absl::StrJoin(facts.pci, ", "), ": ", why),
          "install NVIDIA's driver, 580 or newer for everything that Ferry can use");
    }
    return Skipped("driver", absl::StrCat("no GPU: ", why));
  }
  if (absl::IsFailedPrecondition(facts.cuda)) {
    return Wrong("driver", why, "install a newer driver");
  }
  if (absl::IsUnimplemented(facts.cuda)) {
    return Wrong("driver", why, "install NVIDIA's own driver, a newer one");
  }
  if (absl::IsNotFound(facts.cuda)) {
    if (facts.visible_devices) {
      return Wrong("driver",
                   absl::StrCat(why, "; CUDA_VISIBLE_DEVICES=", Quoted(*facts.visible_devices)),
                   "name devices that there are (nvidia-smi -L)");
    }
    if (facts.kernel_gpu_count > 0 && !facts.has_device_nodes) {
      return Wrong("driver",
                   absl::StrCat("the kernel has ", facts.kernel_gpu_count,
                                " GPUs, but this process may not open /dev/nvidiactl: ", why),
                   "give the container the devices (--gpus all), the job a GPU (--gres=gpu:1), the "
                   "user the right");
    }
    if (facts.kernel_gpu_count > 0) return Wrong("driver", why, AdviceForCall(why));
    return Skipped("driver", absl::StrCat("no GPU: ", why));
  }
  return Wrong("driver", why, AdviceForCall(why));
}

bool IsSlice(const Device& device) { return absl::StrContains(device.name, " MIG "); }

std::string Pair(const PeerOutcome& outcome) {
  return absl::StrCat("gpu:", outcome.from, ">gpu:", outcome.to);
}

std::string JoinSome(const std::vector<std::string>& all) { return BoundedList(all, 6); }

}  // namespace

std::string AdviceForCall(absl::string_view message) {
  // Source: cuda.h, CUresult.
  const auto has_code = [message](int code) {
    return absl::StrContains(message, absl::StrCat("failed with code ", code, " "));
  };
  if (has_code(802)) {
    return "start nvidia-fabricmanager, of exactly the driver's version: GPUs behind NVSwitches "
           "wait for it";
  }
  if (has_code(803)) {
    return "the library is of another version than the kernel's module: reboot, or restart the "
           "container";
  }
  if (has_code(804)) {
    return "take CUDA's compat folder out of LD_LIBRARY_PATH: these GPUs or this driver do not "
           "support it";
  }
  if (has_code(46) || absl::StrContains(message, "has it to itself")) {
    return "another process has the GPU to itself (nvidia-smi shows it; nvidia-smi -c 0 allows "
           "several)";
  }
  if (has_code(999)) {
    return "load nvidia-uvm (nvidia-modprobe -u -c=0), and with MIG make instances; dmesg says "
           "more";
  }
  return "see nvidia-smi, and dmesg for lines with NVRM or Xid";
}

Finding CheckDriver(const GpuFacts& facts) {
  if (!facts.cuda.ok()) return CheckAbsentDriver(facts);
  std::string seen;
  if (!facts.nvml_driver.empty()) absl::StrAppend(&seen, facts.nvml_driver, ", ");
  absl::StrAppend(&seen, "up to CUDA ", cuda::VersionText(facts.cuda_version), ", by ",
                  facts.cuda_path);
  if (!facts.nvml_driver.empty() && !facts.kernel_driver.empty() &&
      facts.nvml_driver != facts.kernel_driver) {
    return Wrong("driver", absl::StrCat(seen, ", but the kernel's module is ", facts.kernel_driver),
                 "reboot, or restart the container: one of them was upgraded");
  }
  if (!facts.lacking.empty()) {
    return Warning("driver", absl::StrCat(seen, "; lacks ", absl::StrJoin(facts.lacking, ", ")),
                   "expect tensors to be staged where they need it; a driver of NVIDIA's for Linux "
                   "has all");
  }
  if (!facts.nvml_reason.empty()) {
    return Warning("driver",
                   absl::StrCat(seen, "; NVLinks and fabrics are not known: ", facts.nvml_reason),
                   "install libnvidia-ml.so.1 of the driver's version, in containers with "
                   "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
  }
  return Ok("driver", std::move(seen));
}

Finding CheckGpuCount(const GpuFacts& facts) {
  const size_t count = facts.gpus.size();
  std::string seen = absl::StrCat(count, count == 1 ? " GPU" : " GPUs");
  if (!facts.gpu_failures.empty()) {
    return Wrong("gpus",
                 absl::StrCat(seen, ", and ", facts.gpu_failures.size(),
                              " more that answered with an error: ",
                              absl::StrJoin(facts.gpu_failures, "; ")),
                 "see nvidia-smi and the kernel's log (dmesg, Xid), reset the GPU or leave it out "
                 "of CUDA_VISIBLE_DEVICES; jobs run on the others");
  }
  if (facts.visible_devices) {
    absl::StrAppend(&seen, " by CUDA_VISIBLE_DEVICES=", Quoted(*facts.visible_devices));
    const std::vector<std::string> named =
        absl::StrSplit(*facts.visible_devices, ',', absl::SkipWhitespace());
    if (named.size() > count) {
      return Warning("gpus", absl::StrCat(seen, ", which names ", named.size()),
                     "take out what there is not: CUDA stops at the first such entry");
    }
    return Ok("gpus", std::move(seen));
  }
  const auto kernel_count = static_cast<size_t>(facts.kernel_gpu_count);
  if (kernel_count > count) {
    return Warning("gpus", absl::StrCat(seen, " of the ", kernel_count, " that the kernel has"),
                   "none, if the container or batch system gave this job so many");
  }
  return Ok("gpus", std::move(seen));
}

Finding CheckHardwareQueues(const GpuFacts& facts) {
  constexpr int kDefault = 8;
  constexpr int kMost = 32;
  const std::string name = "hardware queues";
  if (!facts.max_connections) return Ok(name, absl::StrCat(kDefault, " for the streams of a GPU"));
  const std::string setting =
      absl::StrCat("CUDA_DEVICE_MAX_CONNECTIONS=", Quoted(*facts.max_connections));
  int queues = 0;
  if (!absl::SimpleAtoi(*facts.max_connections, &queues) || queues < 1 || queues > kMost) {
    return Warning(name, absl::StrCat(setting, " is not a number from 1 to ", kMost),
                   "unset it, or correct it");
  }
  std::string seen =
      absl::StrCat(queues, " for the streams of a GPU, by CUDA_DEVICE_MAX_CONNECTIONS");
  if (queues >= kDefault) return Ok(name, std::move(seen));
  return Warning(
      name,
      absl::StrCat(seen,
                   ": a stream that waits for an event delays streams that share its "
                   "queue, NCCL's too"),
      "unset it unless your framework needs it; do not use --gpu-wait-on-device with it");
}

Finding CheckGpu(const GpuFact& gpu) {
  const Device& device = gpu.device;
  std::string name = DeviceName(device);
  std::string seen = absl::StrCat(device.name, ", sm_", device.compute_major, device.compute_minor,
                                  ", ", BytesText(device.memory_bytes), ", ", device.pci_bus_id,
                                  gpu.traits.uses_mps ? ", shared by MPS" : "");
  if (gpu.traits.compute_mode == cuda::kComputeModeProhibited) {
    return Wrong(std::move(name), absl::StrCat(seen, ": compute mode Prohibited"),
                 absl::StrCat("nvidia-smi -i ", device.pci_bus_id, " -c 0"));
  }
  if (gpu.traits.compute_mode == cuda::kComputeModeExclusiveProcess) {
    return Warning(std::move(name),
                   absl::StrCat(seen, ": compute mode Exclusive_Process, so one process at a time"),
                   absl::StrCat("for several, nvidia-smi -i ", device.pci_bus_id, " -c 0, or MPS"));
  }
  if (IsSlice(device)) {
    return Warning(std::move(name),
                   absl::StrCat(seen, ": a slice (MIG), with no IPC to other slices and no NVLink"),
                   "give each slice one process; NCCL takes two slices of a GPU for one unless "
                   "NCCL_HOSTID differs");
  }
  if (!gpu.traits.exports_posix_fd) {
    return Warning(std::move(name),
                   absl::StrCat(seen, ": its memory cannot be exported as descriptors"),
                   "expect older handles instead, which need a common pid namespace");
  }
  return Ok(std::move(name), std::move(seen));
}

std::vector<Finding> CheckFabric(const GpuFacts& facts) {
  std::vector<std::string> fabrics;
  for (const GpuFact& gpu : facts.gpus) {
    const std::string& fabric = gpu.device.fabric_uuid;
    if (!IsFabric(fabric)) continue;
    if (std::find(fabrics.begin(), fabrics.end(), fabric) == fabrics.end()) {
      fabrics.push_back(fabric);
    }
  }
  if (fabrics.empty()) return {};
  const std::string seen = absl::StrCat("NVLink between machines, ", absl::StrJoin(fabrics, ", "));
  if (facts.imex_channel_count == 0) {
    return {Warning("fabric",
                    absl::StrCat(seen, ", but no channel in /dev/nvidia-caps-imex-channels"),
                    "start nvidia-imex and give the container a channel; until then NCCL does not "
                    "use it (or set NCCL_MNNVL_ENABLE=0)")};
  }
  return {Ok("fabric", absl::StrCat(seen, ", ", facts.imex_channel_count, " IMEX channels"))};
}

std::vector<Finding> CheckGpus(const GpuFacts& facts) {
  std::vector<Finding> findings = {CheckDriver(facts)};
  if (!facts.cuda.ok()) return findings;
  findings.push_back(CheckGpuCount(facts));
  if (!facts.gpus.empty()) findings.push_back(CheckHardwareQueues(facts));
  for (const GpuFact& gpu : facts.gpus) findings.push_back(CheckGpu(gpu));
  for (Finding& finding : CheckFabric(facts)) findings.push_back(std::move(finding));
  return findings;
}

Finding JudgePeers(absl::Span<const PeerOutcome> outcomes) {
  if (outcomes.empty()) return Skipped("peer access", "there are no two GPUs");
  std::vector<std::string> wrong;
  std::vector<std::string> without;
  std::vector<std::string> not_opened;
  for (const PeerOutcome& outcome : outcomes) {
    if (!outcome.opened.ok()) {
      const std::string why(outcome.opened.message());
      if (std::find(not_opened.begin(), not_opened.end(), why) == not_opened.end()) {
        not_opened.push_back(why);
      }
    } else if (!outcome.can_access) {
      without.push_back(Pair(outcome));
    } else if (!outcome.copied.ok()) {
      wrong.push_back(absl::StrCat(Pair(outcome), ": ", outcome.copied.message()));
    }
  }
  if (!wrong.empty()) {
    return Wrong("peer access",
                 absl::StrCat("promised by the driver, but not so: ", JoinSome(std::move(wrong))),
                 "turn PCIe ACS off and the IOMMU to pass-through (iommu=pt); until then set "
                 "NCCL_P2P_DISABLE=1");
  }
  if (!not_opened.empty()) {
    std::string todo = AdviceForCall(not_opened[0]);
    return Wrong("peer access",
                 absl::StrCat("GPUs cannot be opened: ", JoinSome(std::move(not_opened))),
                 std::move(todo));
  }
  if (!without.empty()) {
    return Warning("peer access",
                   absl::StrCat(without.size(), " of ", outcomes.size(),
                                " ordered pairs have none: ", JoinSome(without)),
                   "expect copies between them to go through host memory; nvidia-smi topo -p2p r "
                   "says why");
  }
  return Ok("peer access",
            absl::StrCat("all ", outcomes.size(), " ordered pairs, each with a copy verified"));
}

Finding JudgeIpc(int ordinal, const IpcOutcome& descriptor, const IpcOutcome& handle) {
  std::string name = absl::StrCat("gpu:", ordinal, " ipc");
  const bool is_one_reason =
      !descriptor.status.ok() && descriptor.status.message() == handle.status.message();
  const std::string reasons =
      is_one_reason
          ? std::string(handle.status.message())
          : absl::StrCat(
                "by descriptor: ",
                descriptor.status.ok() ? "verified" : descriptor.status.message(),
                "; by handle: ", handle.status.ok() ? "verified" : handle.status.message());
  if (descriptor.status.ok() && handle.status.ok()) {
    return Ok(std::move(name), absl::StrCat("between two processes, verified: by descriptor after ",
                                            ShortDuration(descriptor.taken), ", by handle after ",
                                            ShortDuration(handle.taken)));
  }
  if (descriptor.status.ok()) {
    return Warning(std::move(name), reasons,
                   "allocate with Ferry (Node::Allocate), or with cuMemCreate or pools that export "
                   "descriptors: memory of cudaMalloc is staged");
  }
  if (handle.status.ok()) {
    return Warning(std::move(name), reasons,
                   "keep the processes in one pid namespace, as older handles need it");
  }
  return Wrong(std::move(name), reasons,
               absl::StrContains(reasons, "failed with code ") ||
                       absl::StrContains(reasons, "has it to itself")
                   ? AdviceForCall(reasons)
                   : "tensors between processes of this machine are staged through host memory");
}

}  // namespace ferry::doctor
