// SPDX-License-Identifier: Apache-2.0
// Combines the facts of the driver, NVML and the kernel.
#include "gpu/discovery.h"

#include <fstream>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "base/status_macros.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/enumerate.h"
#include "gpu/nvml/links.h"
#include "gpu/nvml/nvml.h"
#include "topology/host_discovery.h"

namespace ferry {
namespace {

// Returns -1 if the kernel does not know, as on machines with one node, or does not show the
// device.
int NumaNodeOf(const std::string& sysfs_root, const std::string& pci_bus_id) {
  std::ifstream file(absl::StrCat(sysfs_root, "/bus/pci/devices/", pci_bus_id, "/numa_node"));
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

absl::StatusOr<cuda::GpuEnumeration> FromCuda() {
  const absl::StatusOr<std::unique_ptr<cuda::CudaApi>> api = cuda::CudaApi::Load();
  if (!api.ok()) return cuda::WithVisibility(api.status());
  absl::StatusOr<cuda::GpuEnumeration> found = cuda::EnumerateGpus(**api);
  return found.ok() ? std::move(found) : cuda::WithVisibility(found.status());
}

absl::Status AddFromNvml(GpuDiscovery& discovery) {
  FERRY_ASSIGN_OR_RETURN(const std::unique_ptr<nvml::Nvml> nvml, nvml::Nvml::Load());
  return nvml::AddLinks(*nvml, absl::MakeSpan(discovery.devices), discovery.links);
}

}  // namespace

GpuDiscovery DiscoverGpus(const DiscoveryOptions& options) {
  GpuDiscovery discovery;
  absl::StatusOr<cuda::GpuEnumeration> found = FromCuda();
  if (!found.ok()) {
    discovery.cuda_reason = std::string(found.status().message());
    discovery.nvml_reason = "not asked: CUDA shows no GPU";
    return discovery;
  }
  discovery.devices = std::move(found->gpus);
  discovery.gpu_failures = std::move(found->failures);
  for (Device& device : discovery.devices) {
    device.numa_node = NumaNodeOf(options.sysfs_root, device.pci_bus_id);
  }
  discovery.nvml_reason = std::string(AddFromNvml(discovery).message());
  return discovery;
}

LocalDiscovery DiscoverLocal(const DiscoveryOptions& options) {
  HostDiscovery host = DiscoverHost();
  GpuDiscovery gpus = DiscoverGpus(options);
  LocalDiscovery local;
  local.host_reason = std::move(host.reason);
  local.cuda_reason = std::move(gpus.cuda_reason);
  local.gpu_failures = std::move(gpus.gpu_failures);
  local.nvml_reason = std::move(gpus.nvml_reason);
  LocalTopology& topology = local.topology;
  topology.host_name = std::move(host.host_name);
  topology.boot_id = std::move(host.boot_id);
  topology.devices.push_back(std::move(host.device));
  for (Device& gpu : gpus.devices) topology.devices.push_back(std::move(gpu));
  for (size_t gpu = 1; gpu < topology.devices.size(); ++gpu) {
    topology.SetLink(0, static_cast<int>(gpu), PlainLink(LinkType::kPhb));
  }
  for (const DeviceLink& link : gpus.links) {
    topology.SetLink(link.first + 1, link.second + 1, link.link);
  }
  const absl::Status valid = Validate(topology);
  if (valid.ok()) return local;
  // For example two GPUs with the same UUID: a broken driver. The host remains usable.
  local.cuda_reason = std::string(valid.message());
  topology.devices.resize(1);
  topology.links.clear();
  return local;
}

}  // namespace ferry
