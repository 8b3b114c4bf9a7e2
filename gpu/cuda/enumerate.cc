// SPDX-License-Identifier: Apache-2.0
// Queries the CUDA driver for each GPU's properties.
#include "gpu/cuda/enumerate.h"

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "topology/pci_bus_id.h"

namespace ferry::cuda {
namespace {

absl::StatusOr<int> ReadAttribute(const CudaApi& api, DeviceAttribute attribute, Device device) {
  int value = 0;
  FERRY_RETURN_IF_ERROR(
      api.Check(api.table().device_get_attribute(&value, attribute, device),
                absl::StrCat("cuDeviceGetAttribute ", static_cast<int>(attribute))));
  return value;
}

absl::StatusOr<ferry::Device> Describe(const CudaApi& api, int ordinal) {
  const CudaTable& table = api.table();
  Device handle = 0;
  FERRY_RETURN_IF_ERROR(api.Check(table.device_get(&handle, ordinal), "cuDeviceGet"));
  ferry::Device gpu;
  gpu.kind = DeviceKind::kGpu;
  gpu.ordinal = ordinal;
  gpu.vendor = "NVIDIA";
  char text[256] = "";
  FERRY_RETURN_IF_ERROR(
      api.Check(table.device_get_name(text, sizeof(text), handle), "cuDeviceGetName"));
  gpu.name = text;
  Uuid uuid = {};
  FERRY_RETURN_IF_ERROR(api.Check(table.device_get_uuid(&uuid, handle), "cuDeviceGetUuid_v2"));
  gpu.uuid = UuidText(uuid);
  FERRY_RETURN_IF_ERROR(
      api.Check(table.device_get_pci_bus_id(text, sizeof(text), handle), "cuDeviceGetPCIBusId"));
  gpu.pci_bus_id = NormalizePciBusId(text).value_or("");
  FERRY_ASSIGN_OR_RETURN(gpu.compute_major, ReadAttribute(api, kComputeCapabilityMajor, handle));
  FERRY_ASSIGN_OR_RETURN(gpu.compute_minor, ReadAttribute(api, kComputeCapabilityMinor, handle));
  FERRY_ASSIGN_OR_RETURN(gpu.core_count, ReadAttribute(api, kMultiprocessorCount, handle));
  size_t memory_bytes = 0;
  FERRY_RETURN_IF_ERROR(
      api.Check(table.device_total_mem(&memory_bytes, handle), "cuDeviceTotalMem_v2"));
  gpu.memory_bytes = memory_bytes;
  return gpu;
}

}  // namespace

absl::StatusOr<GpuEnumeration> EnumerateGpus(const CudaApi& api) {
  int count = 0;
  FERRY_RETURN_IF_ERROR(api.Check(api.table().device_get_count(&count), "cuDeviceGetCount"));
  if (count == 0) return absl::NotFoundError("the CUDA driver shows no GPU");
  GpuEnumeration found;
  absl::Status first_failure;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    absl::StatusOr<ferry::Device> gpu = Describe(api, ordinal);
    if (gpu.ok()) {
      found.gpus.push_back(*std::move(gpu));
      continue;
    }
    found.failures.push_back(absl::StrCat("gpu:", ordinal, ": ", gpu.status().message()));
    first_failure.Update(absl::Status(gpu.status().code(), found.failures.back()));
  }
  if (found.gpus.empty()) return first_failure;
  return found;
}

absl::Status WithVisibility(const absl::Status& why) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr || !absl::IsNotFound(why)) return why;
  return absl::NotFoundError(absl::StrCat(
      why.message(), ": CUDA_VISIBLE_DEVICES is ",
      *visible == '\0' ? std::string("set and empty, which hides every GPU") : Quoted(visible)));
}

}  // namespace ferry::cuda
