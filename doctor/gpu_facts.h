// SPDX-License-Identifier: Apache-2.0
// GpuFacts: the GPUs of this machine as reported by the driver and the kernel, for the checks.
#ifndef FERRY_DOCTOR_GPU_FACTS_H_
#define FERRY_DOCTOR_GPU_FACTS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "doctor/host_reader.h"
#include "gpu/cuda/cuda_api.h"
#include "gpu/cuda/cuda_device.h"
#include "topology/device.h"

namespace ferry::doctor {

struct GpuFact {
  Device device;
  cuda::DeviceTraits traits;
};

// A value; a machine without GPUs has the defaults.
struct GpuFacts {
  // Why the driver cannot be used; OK if it can.
  absl::Status cuda;
  std::string cuda_path;  // of its library
  int cuda_version = 0;   // 12040 for 12.4: the newest CUDA version that it supports
  // Function groups that the driver lacks, each with the name of the first missing function.
  std::vector<std::string> lacking;
  std::vector<GpuFact> gpus;  // in the driver's order
  // For each GPU that is not among them since the driver answered with an error: which, and why.
  std::vector<std::string> gpu_failures;
  std::string nvml_reason;  // why links and fabrics are unknown; empty if they are known
  std::string nvml_driver;  // "580.65.06" according to the library; empty: unknown

  std::string kernel_driver;      // "580.65.06" according to the kernel; empty: not loaded
  int kernel_gpu_count = 0;       // number of GPUs of the kernel's driver
  std::vector<std::string> pci;   // bus ids of NVIDIA GPUs, whichever driver is bound
  bool has_device_nodes = false;  // /dev/nvidiactl can be opened
  int imex_channel_count = 0;     // /dev/nvidia-caps-imex-channels
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES
  std::optional<std::string> max_connections;  // CUDA_DEVICE_MAX_CONNECTIONS
  std::optional<std::string> cuda_library;     // FERRY_CUDA_LIBRARY
};

// Loads the driver, and so may block for seconds while it wakes GPUs. Creates no context.
//   api: set if the driver can be used.
GpuFacts ReadGpuFacts(const HostReader& host, std::unique_ptr<cuda::CudaApi>& api);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_GPU_FACTS_H_
