// SPDX-License-Identifier: Apache-2.0
// Queries of the driver, NVML and the kernel.
#include "doctor/gpu_facts.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"

#include "base/status_macros.h"
#include "gpu/cuda/enumerate.h"
#include "gpu/nvml/links.h"
#include "gpu/nvml/nvml.h"

namespace ferry::doctor {
namespace {

constexpr char kPciFolder[] = "/sys/bus/pci/devices";

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..." -> "550.54.15".
std::string VersionIn(const std::string& text) {
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \t\n"))) {
    const bool is_version = !word.empty() && absl::StrContains(word, '.') &&
                            word.find_first_not_of("0123456789.") == absl::string_view::npos;
    if (is_version) return std::string(word);
  }
  return "";
}

// NVIDIA devices of the PCI display classes (0x0300 VGA, 0x0302 3D).
std::vector<std::string> GpusOnTheBus(const HostReader& host) {
  std::vector<std::string> found;
  const auto devices = host.ListFolder(kPciFolder);
  if (!devices.ok()) return found;
  for (const std::string& device : *devices) {
    const std::string folder = absl::StrCat(kPciFolder, "/", device);
    const auto vendor = host.ReadFile(absl::StrCat(folder, "/vendor"));
    if (!vendor.ok() || *vendor != "0x10de") continue;
    const auto pci_class = host.ReadFile(absl::StrCat(folder, "/class"));
    if (pci_class.ok() && absl::StartsWith(*pci_class, "0x03")) found.push_back(device);
  }
  return found;
}

absl::Status AskDriver(const cuda::CudaApi& api, GpuFacts& facts) {
  facts.cuda_path = api.path();
  facts.cuda_version = api.version();
  using cuda::CudaGroup;
  for (const auto& [group, what] :
       {std::pair{CudaGroup::kExecution, "execution"}, std::pair{CudaGroup::kIpc, "IPC"},
        std::pair{CudaGroup::kVirtualMemory, "virtual memory"},
        std::pair{CudaGroup::kPools, "pools"}, std::pair{CudaGroup::kModules, "kernels"}}) {
    const absl::Status& has = api.Has(group);
    if (!has.ok()) facts.lacking.push_back(absl::StrCat(what, " (", has.message(), ")"));
  }
  FERRY_ASSIGN_OR_RETURN(cuda::GpuEnumeration found, cuda::EnumerateGpus(api));
  facts.gpu_failures = std::move(found.failures);
  for (Device& device : found.gpus) {
    cuda::Device handle = 0;
    FERRY_RETURN_IF_ERROR(
        api.Check(api.table().device_get(&handle, device.ordinal), "cuDeviceGet"));
    facts.gpus.push_back({std::move(device), cuda::ReadTraits(api, handle)});
  }
  return absl::OkStatus();
}

absl::Status AskNvml(GpuFacts& facts) {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<nvml::Nvml> nvml, nvml::Nvml::Load());
  facts.nvml_driver = nvml->driver_version();
  std::vector<Device> devices;
  for (const GpuFact& gpu : facts.gpus) devices.push_back(gpu.device);
  std::vector<DeviceLink> links;
  const absl::Status asked = nvml::AddLinks(*nvml, absl::MakeSpan(devices), links);
  for (size_t i = 0; i < devices.size(); ++i) facts.gpus[i].device = std::move(devices[i]);
  return asked;
}

}  // namespace

GpuFacts ReadGpuFacts(const HostReader& host, std::unique_ptr<cuda::CudaApi>& api) {
  GpuFacts facts;
  facts.visible_devices = host.Environment("CUDA_VISIBLE_DEVICES");
  facts.max_connections = host.Environment("CUDA_DEVICE_MAX_CONNECTIONS");
  facts.cuda_library = host.Environment("FERRY_CUDA_LIBRARY");
  facts.pci = GpusOnTheBus(host);
  const auto version = host.ReadFile("/proc/driver/nvidia/version");
  if (version.ok()) facts.kernel_driver = VersionIn(*version);
  const auto gpus = host.ListFolder("/proc/driver/nvidia/gpus");
  if (gpus.ok()) facts.kernel_gpu_count = static_cast<int>(gpus->size());
  facts.has_device_nodes = host.MayReadAndWrite("/dev/nvidiactl").ok();
  const auto channels = host.ListFolder("/dev/nvidia-caps-imex-channels");
  if (channels.ok()) facts.imex_channel_count = static_cast<int>(channels->size());
  absl::StatusOr<std::unique_ptr<cuda::CudaApi>> loaded = cuda::CudaApi::Load();
  facts.cuda = loaded.ok() ? AskDriver(**loaded, facts) : loaded.status();
  if (!facts.cuda.ok()) return facts;
  api = *std::move(loaded);
  facts.nvml_reason = std::string(AskNvml(facts).message());
  return facts;
}

}  // namespace ferry::doctor
