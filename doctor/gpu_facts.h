// SPDX-License-Identifier: Apache-2.0
// GpuFacts: what the driver and the kernel say of this machine's GPUs, as values to be judged.
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

// A value; a machine without anything is the default.
struct GpuFacts {
  // Why the driver cannot be used; OK if it can.
  absl::Status cuda;
  std::string cuda_path;  // of its library
  int cuda_version = 0;   // 12040 for 12.4: the newest CUDA that it runs
  // Groups of its functions that it lacks, with the first missing one's name.
  std::vector<std::string> lacking;
  std::vector<GpuFact> gpus;  // in the driver's order
  std::string nvml_reason;    // why links and fabrics are not known; empty if they are
  std::string nvml_driver;    // "580.65.06" as the library has it; empty: not known

  std::string kernel_driver;      // "580.65.06" as the kernel has it; empty: it has none
  int kernel_gpu_count = 0;       // that the kernel's driver has
  std::vector<std::string> pci;   // bus ids of NVIDIA's GPUs on the bus, whatever drives them
  bool has_device_nodes = false;  // /dev/nvidiactl can be opened
  int imex_channel_count = 0;     // /dev/nvidia-caps-imex-channels
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES
  std::optional<std::string> cuda_library;     // FERRY_CUDA_LIBRARY
};

// Loads the driver, and so blocks for seconds where it must wake GPUs. Creates no context.
//   api: set if the driver can be used.
GpuFacts ReadGpuFacts(const HostReader& host, std::unique_ptr<cuda::CudaApi>& api);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_GPU_FACTS_H_
