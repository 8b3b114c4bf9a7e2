// SPDX-License-Identifier: Apache-2.0
// Loading NVML and naming its errors.
#include "gpu/nvml/nvml.h"

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "gpu/shared_library.h"

namespace ferry::nvml {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr char kOverride[] = "FERRY_NVML_LIBRARY";

absl::Status ResolveAll(const SharedLibrary& library, NvmlTable& table) {
  FERRY_RETURN_IF_ERROR(library.Resolve("nvmlInit_v2", table.init));
  FERRY_RETURN_IF_ERROR(library.Resolve("nvmlShutdown", table.shutdown));
  FERRY_RETURN_IF_ERROR(library.Resolve("nvmlErrorString", table.error_string));
  FERRY_RETURN_IF_ERROR(
      library.Resolve("nvmlSystemGetDriverVersion", table.system_get_driver_version));
  FERRY_RETURN_IF_ERROR(
      library.Resolve("nvmlDeviceGetHandleByUUID", table.device_get_handle_by_uuid));
  FERRY_RETURN_IF_ERROR(
      library.Resolve("nvmlDeviceGetHandleByPciBusId_v2", table.device_get_handle_by_pci_bus_id));
  FERRY_RETURN_IF_ERROR(library.Resolve("nvmlDeviceGetTopologyCommonAncestor",
                                        table.device_get_topology_common_ancestor));
  FERRY_RETURN_IF_ERROR(library.Resolve("nvmlDeviceGetNvLinkState", table.device_get_nvlink_state));
  FERRY_RETURN_IF_ERROR(library.Resolve("nvmlDeviceGetNvLinkRemotePciInfo_v2",
                                        table.device_get_nvlink_remote_pci_info));
  library.ResolveOptional("nvmlDeviceGetNvLinkRemoteDeviceType",
                          table.device_get_nvlink_remote_device_type);
  library.ResolveOptional("nvmlDeviceGetGpuFabricInfo", table.device_get_gpu_fabric_info);
  library.ResolveOptional("nvmlDeviceGetGpuFabricInfoV", table.device_get_gpu_fabric_info_v);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Load() {
  FERRY_ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(kLibrary, kOverride));
  std::unique_ptr<Nvml> nvml = absl::WrapUnique(new Nvml);
  FERRY_RETURN_IF_ERROR(ResolveAll(library, nvml->table_));
  FERRY_RETURN_IF_ERROR(nvml->Check(nvml->table_.init(), "nvmlInit_v2"));
  nvml->initialized_ = true;
  char version[80] = "";  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  FERRY_RETURN_IF_ERROR(
      nvml->Check(nvml->table_.system_get_driver_version(version, sizeof(version)),
                  "nvmlSystemGetDriverVersion"));
  nvml->driver_version_ = version;
  const absl::string_view text = nvml->driver_version_;
  int major = 0;
  if (!absl::SimpleAtoi(text.substr(0, text.find('.')), &major) || major < kMinDriverMajor) {
    return absl::FailedPreconditionError(absl::StrCat(
        library.path(), " is of driver ", text, ", at least ", kMinDriverMajor, " is needed"));
  }
  return nvml;
}

Nvml::~Nvml() {
  if (initialized_) table_.shutdown();
}

absl::Status Nvml::Check(Result result, absl::string_view call) const {
  if (result == kSuccess) return absl::OkStatus();
  const char* const text = table_.error_string(result);
  return absl::InternalError(absl::StrCat(call, " failed with code ", result,
                                          text == nullptr ? "" : absl::StrCat(": ", text)));
}

}  // namespace ferry::nvml
