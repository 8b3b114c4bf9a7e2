// SPDX-License-Identifier: Apache-2.0
// The machine that the fake driver simulates, as configured by the environment.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_CONFIG_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace strict_cuda {

inline constexpr int kMaxDevices = 16;
inline constexpr size_t kGranularity = size_t{2} << 20;

struct DeviceConfig {
  int physical = 0;  // index in the machine, regardless of CUDA_VISIBLE_DEVICES
  std::string name;
  std::string uuid_text;  // "GPU-53545249-..."
  unsigned char uuid[16] = {};
  std::string pci_bus_id;  // "0000:1b:00.0"
};

// Read once, at the first use. docs/testing_gpu.md lists the variables.
struct Config {
  std::string session;  // a directory, or empty: a machine of this process alone
  std::vector<DeviceConfig> devices;
  std::vector<int> visible;  // physical indexes, by ordinal
  bool is_mig = false;       // the devices are instances of one GPU
  size_t memory_bytes = 0;   // of each device
  size_t size_unit = 512;    // of the sizes that the driver tells; at most 512
  int compute_major = 9;
  int compute_minor = 0;
  int driver_version = 13000;
  int nccl_version = 22809;
  bool peers[kMaxDevices][kMaxDevices] = {};
  int nvlinks[kMaxDevices][kMaxDevices] = {};
  int switch_nvlinks = 0;
  int pcie_level = 40;  // nvmlGpuTopologyLevel_t
  int fabric_cluster = 0;
  bool pool_imports_once = false;  // a second import of a pool fails
  int connections = 0;             // hardware queues of a context; 0: one for each stream
  int deadlock_ms = 2000;
  int init_ms = 0;
  bool nccl_peer_death_is_error = false;
  int nccl_absent_rank = -1;
  bool nccl_abort_is_watched = false;
  bool nccl_has_windows = true;   // symmetric memory
  bool nccl_has_puts = true;      // and one-sided operations
  bool nccl_waits_early = true;   // waits for signals that have not been sent are let pass
  int nccl_launch_us = 60;        // how long a non-blocking group is in progress, at least
  int64_t nccl_memory = 0;        // of each communicator, in bytes
  std::map<int, int> attributes;  // overrides of cuDeviceGetAttribute
};

const Config& GetConfig();

std::string FromEnvironment(const char* name, const std::string& otherwise);
int64_t NumberFromEnvironment(const char* name, int64_t otherwise);
// "a,b" as two parts; none for "".
std::vector<std::string> SplitText(const std::string& text, char by);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_CONFIG_H_
