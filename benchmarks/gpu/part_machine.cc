// SPDX-License-Identifier: Apache-2.0
// Describes this machine: GPUs, libraries and their versions, links; and whether the driver is
// the fake one.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "benchmarks/gpu/check_part.h"
#include "benchmarks/gpu/check_program.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/discovery.h"
#include "gpu/kernels/kernels.h"
#include "gpu/nccl/nccl_api.h"
#include "gpu/nvml/nvml.h"
#include "gpu/shared_library.h"
#include "topology/link.h"

namespace ferry::check {
namespace {

// Every fake driver has this function.
constexpr char kFakeDriverSymbol[] = "strict_cuda_violations";

// For a GPU whose driver accepts Ferry's kernels.
constexpr char kKernelsLoad[] = "load";
// The first bytes of a fat binary.
constexpr char kFatBinary[] = "\x50\xed\x55\xba";
// For one whose driver has compiled them: it is older than the toolkit of this build.
constexpr char kKernelsFromPtx[] = "made by the driver from PTX";

// Which of the libraries in use is a fake; empty: none.
std::string FindFakeDriver() {
  struct Named {
    const char* path;
    const char* variable;
  };
  constexpr Named kLibraries[] = {{"libcuda.so.1", "FERRY_CUDA_LIBRARY"},
                                  {"libcuda.so.1", "FERRY_CUDA_RECORD_LIBRARY"},
                                  {"libnvidia-ml.so.1", "FERRY_NVML_LIBRARY"},
                                  {"libnccl.so.2", "FERRY_NCCL_LIBRARY"}};
  for (const Named& each : kLibraries) {
    const absl::StatusOr<SharedLibrary> library = SharedLibrary::Open(each.path, each.variable);
    if (!library.ok()) continue;
    int (*mark)() = nullptr;
    library->ResolveOptional(kFakeDriverSymbol, mark);
    if (mark != nullptr) return library->path();
  }
  return "";
}

const char* ComputeModeName(int mode) {
  switch (mode) {
    case cuda::kComputeModeDefault:
      return "default";
    case cuda::kComputeModeExclusiveProcess:
      return "exclusive process";
    case cuda::kComputeModeProhibited:
      return "prohibited";
    default:
      return "unknown";
  }
}

// How the patterns are made and compared: the verification of measurements uses it.
std::string KernelsText(const Json& gpu) {
  const std::string kernels = gpu.value("kernels", gpu.value("cannot_be_opened", ""));
  if (kernels == kKernelsLoad) return "patterns are made and compared on the GPU";
  if (absl::StartsWith(kernels, kKernelsFromPtx)) {
    return absl::StrCat("patterns are made and compared on the GPU, by kernels ", kernels);
  }
  return absl::StrCat("patterns go by the host: ", kernels);
}

Json DescribeGpu(const std::shared_ptr<const cuda::CudaApi>& api, const Device& gpu) {
  Json json = {{"ordinal", gpu.ordinal},
               {"name", gpu.name},
               {"uuid", gpu.uuid},
               {"pci_bus_id", gpu.pci_bus_id},
               {"compute", absl::StrCat(gpu.compute_major, ".", gpu.compute_minor)},
               {"multiprocessors", gpu.core_count},
               {"memory_bytes", gpu.memory_bytes},
               {"numa_node", gpu.numa_node},
               {"fabric", gpu.fabric_uuid},
               // The driver gives the uuid of a slice without the "MIG-" that tools put before it,
               // but names it by its profile.
               {"is_mig", absl::StrContains(gpu.name, " MIG ")}};
  const auto device = cuda::CudaDevice::Open(api, gpu.ordinal);
  if (!device.ok()) {
    json["cannot_be_opened"] = device.status().ToString();
    return json;
  }
  const cuda::DeviceTraits& traits = (*device)->traits();
  json["compute_mode"] = ComputeModeName(traits.compute_mode);
  json["mps"] = traits.uses_mps;
  json["virtual_memory"] = traits.has_virtual_memory;
  json["exports_descriptors"] = traits.exports_posix_fd;
  json["pools"] = traits.has_pools;
  json["pools_export_descriptors"] = traits.pools_export_posix_fd;
  json["ipc_events"] = traits.has_ipc_events;
  const auto kernels = cuda::Kernels::Load(*device);
  if (!kernels.ok()) {
    json["kernels"] = std::string(kernels.status().message());
  } else if (const std::string& why = (*kernels)->why_ptx(); !why.empty()) {
    json["kernels"] = absl::StrCat(kKernelsFromPtx, ", since the binaries did not load: ", why);
  } else if (!absl::StartsWith(cuda::EmbeddedKernels().image, kFatBinary)) {
    json["kernels"] = absl::StrCat(kKernelsFromPtx, ", since the build has no binaries");
  } else {
    json["kernels"] = kKernelsLoad;
  }
  return json;
}

void TellOfHost(PartContext& context) {
  utsname system = {};
  uname(&system);
  struct statvfs shared = {};
  statvfs("/dev/shm", &shared);
  rlimit locked = {};
  getrlimit(RLIMIT_MEMLOCK, &locked);
  std::error_code ignored;
  context.report.Fact(
      "host",
      {{"kernel", system.release},
       {"processors", sysconf(_SC_NPROCESSORS_ONLN)},
       {"memory_bytes", static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                            static_cast<uint64_t>(sysconf(_SC_PAGESIZE))},
       {"dev_shm_bytes", static_cast<uint64_t>(shared.f_blocks) * shared.f_frsize},
       {"memlock_bytes",
        locked.rlim_cur == RLIM_INFINITY ? Json("unlimited") : Json(locked.rlim_cur)},
       {"pid_namespace", std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string()},
       {"is_container", std::filesystem::exists("/.dockerenv", ignored) ||
                            std::filesystem::exists("/run/.containerenv", ignored)}});
}

// Settings that change how the libraries behave.
void TellOfEnvironment(PartContext& context) {
  Json variables = Json::object();
  for (char** each = environ; *each != nullptr; ++each) {
    const absl::string_view entry = *each;
    for (const char* const prefix : {"CUDA_", "NCCL_", "FERRY_", "STRICT_CUDA_"}) {
      // Secrets are not reported.
      if (!absl::StartsWith(entry, prefix) || absl::StrContains(entry, "TOKEN")) continue;
      const size_t at = entry.find('=');
      variables[std::string(entry.substr(0, at))] = std::string(entry.substr(at + 1));
    }
  }
  context.report.Fact("environment", variables);
}

// The output of the driver's own tool, verbatim.
void TellOfTool(PartContext& context, const std::string& key, std::vector<std::string> arguments) {
  const auto result = RunProgram(arguments, SteadyClock().Now() + absl::Seconds(10));
  const std::string text = result.ok() ? result->output : result.status().ToString();
  context.report.Fact(key, std::string(absl::StripAsciiWhitespace(text)));
}

}  // namespace

absl::Status RunMachinePart(PartContext& context) {
  TellOfHost(context);
  TellOfEnvironment(context);
  TellOfTool(context, "nvidia_smi",
             {"nvidia-smi",
              "--query-gpu=name,driver_version,pci.bus_id,mig.mode.current,compute_mode,"
              "clocks.max.sm,clocks.max.mem,pcie.link.gen.current,pcie.link.width.current,"
              "power.limit,ecc.mode.current,persistence_mode",
              "--format=csv"});
  TellOfTool(context, "nvidia_smi_topology", {"nvidia-smi", "topo", "-m"});
  const std::string fake_driver = FindFakeDriver();
  context.report.Fact("double", fake_driver);
  const LocalDiscovery local = DiscoverLocal();
  for (const Device& device : local.topology.devices) {
    if (device.kind == DeviceKind::kHost) context.report.Fact("processor", device.name);
  }
  absl::StatusOr<std::unique_ptr<cuda::CudaApi>> loaded = cuda::CudaApi::Load();
  if (!loaded.ok()) {
    context.report.Fact("no_gpu_reason", local.cuda_reason);
    context.report.SkipPart(local.cuda_reason);
    return absl::OkStatus();
  }
  const std::shared_ptr<const cuda::CudaApi> api = *std::move(loaded);
  Json gpus = Json::array();
  for (const Device& device : local.topology.devices) {
    if (device.kind == DeviceKind::kGpu) gpus.push_back(DescribeGpu(api, device));
  }
  context.report.Fact("gpus", gpus);
  if (!gpus.empty()) context.report.Fact("kernels", KernelsText(gpus.front()));
  Json links = Json::array();
  for (const DeviceLink& link : local.topology.links) {
    const auto name = [&local](int index) {
      return DeviceName(local.topology.devices[static_cast<size_t>(index)]);
    };
    links.push_back(
        absl::StrCat(name(link.first), " - ", name(link.second), ": ", LinkText(link.link)));
  }
  context.report.Fact("links", links);
  if (!local.nvml_reason.empty()) context.report.Fact("no_links_reason", local.nvml_reason);
  Json versions = {{"cuda_driver_api", cuda::VersionText(api->version())},
                   {"cuda_library", api->path()}};
  const auto nvml = nvml::Nvml::Load();
  versions["driver"] = nvml.ok() ? (*nvml)->driver_version() : nvml.status().ToString();
  const auto nccl = nccl::NcclApi::Load();
  versions["nccl"] = nccl.ok() ? nccl::VersionText((*nccl)->version()) : nccl.status().ToString();
  versions["nccl_library"] = nccl.ok() ? (*nccl)->path() : "";
  context.report.Fact("versions", versions);
  if (gpus.empty()) {
    context.report.Fact("no_gpu_reason", local.cuda_reason);
    context.report.SkipPart(local.cuda_reason);
    return absl::OkStatus();
  }
  context.report.Check("GPUs are found",
                       local.gpu_failures.empty()
                           ? absl::OkStatus()
                           : absl::InternalError(absl::StrJoin(local.gpu_failures, "; ")),
                       {{"count", gpus.size()}});
  return absl::OkStatus();
}

}  // namespace ferry::check
