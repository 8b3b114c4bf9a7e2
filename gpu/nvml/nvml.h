// SPDX-License-Identifier: Apache-2.0
// Nvml: NVIDIA's management library, loaded at run time.
#ifndef FERRY_GPU_NVML_NVML_H_
#define FERRY_GPU_NVML_NVML_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/nvml/nvml_types.h"

namespace ferry::nvml {

// Drivers before 450 lack parts of the NVLink interface that discovery reads.
inline constexpr int kMinDriverMajor = 450;

// Functions of libnvidia-ml.so.1. The last three may be null: they were added later, and discovery
// works without them.
struct NvmlTable {
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result result) = nullptr;
  Result (*system_get_driver_version)(char* version, unsigned int bytes) = nullptr;
  Result (*device_get_handle_by_uuid)(const char* uuid, Device* device) = nullptr;
  Result (*device_get_handle_by_pci_bus_id)(const char* bus_id, Device* device) = nullptr;
  Result (*device_get_topology_common_ancestor)(Device a, Device b, int* level) = nullptr;
  Result (*device_get_nvlink_state)(Device device, unsigned int link, int* is_active) = nullptr;
  Result (*device_get_nvlink_remote_pci_info)(Device device, unsigned int link,
                                              PciInfo* info) = nullptr;
  Result (*device_get_nvlink_remote_device_type)(Device device, unsigned int link,
                                                 int* type) = nullptr;
  Result (*device_get_gpu_fabric_info)(Device device, FabricInfo* info) = nullptr;
  Result (*device_get_gpu_fabric_info_v)(Device device, FabricInfoV2* info) = nullptr;
};

// Initialized while it exists. Loaded for a discovery, and released after it. Thread-safe.
class Nvml final {
 public:
  // Loads libnvidia-ml.so.1, or the file named by FERRY_NVML_LIBRARY, and initializes it. Does not
  // change GPU state. Errors: UNAVAILABLE if there is no library; UNIMPLEMENTED if it lacks a
  // function; FAILED_PRECONDITION if the driver is older than kMinDriverMajor; INTERNAL if its
  // initialization fails.
  static absl::StatusOr<std::unique_ptr<Nvml>> Load();

  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const NvmlTable& table() const { return table_; }
  const std::string& driver_version() const { return driver_version_; }  // "550.54.15"

  // Returns OK, or INTERNAL with the call, the code and NVML's own text.
  absl::Status Check(Result result, absl::string_view call) const;

 private:
  Nvml() = default;

  NvmlTable table_;
  bool initialized_ = false;
  std::string driver_version_;
};

}  // namespace ferry::nvml

#endif  // FERRY_GPU_NVML_NVML_H_
