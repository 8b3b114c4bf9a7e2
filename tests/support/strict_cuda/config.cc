// SPDX-License-Identifier: Apache-2.0
// Reading the environment.
#include "tests/support/strict_cuda/config.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace strict_cuda {
namespace {

DeviceConfig MakeDevice(int index, const std::vector<std::string>& bus_ids, bool is_mig) {
  DeviceConfig device;
  device.physical = index;
  device.name = FromEnvironment("STRICT_CUDA_NAME", "Strict GPU");
  // "STRICT CUDA" and the index; stable, so that processes of one session agree.
  std::memcpy(device.uuid, "STRICT_CUDA_GPU", 15);
  device.uuid[15] = static_cast<unsigned char>(index);
  char text[64];
  std::string uuid = is_mig ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    std::snprintf(text, sizeof(text), "%02x", device.uuid[i]);
    uuid += text;
    if (i == 3 || i == 5 || i == 7 || i == 9) uuid += '-';
  }
  device.uuid_text = uuid;
  std::snprintf(text, sizeof(text), "0000:%02x:00.0", 0x1b + (is_mig ? 0 : index));
  device.pci_bus_id =
      static_cast<size_t>(index) < bus_ids.size() ? bus_ids[static_cast<size_t>(index)] : text;
  return device;
}

// "all", "none", or pairs: "0-1" both directions, "0>1" device 0 reads 1.
void ReadPeers(Config& config, int count) {
  const std::string text = FromEnvironment("STRICT_CUDA_PEERS", "all");
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) config.peers[a][b] = text == "all" && a != b;
  }
  for (const std::string& pair : SplitText(text, ',')) {
    int a = 0;
    int b = 0;
    char way = 0;
    if (std::sscanf(pair.c_str(), "%d%c%d", &a, &way, &b) != 3) continue;
    if (a < 0 || b < 0 || a >= count || b >= count) continue;
    config.peers[a][b] = true;
    if (way == '-') config.peers[b][a] = true;
  }
}

// "switch:18", or pairs with counts: "0-1:4,2-3:4".
void ReadNvlinks(Config& config, int count) {
  for (const std::string& part : SplitText(FromEnvironment("STRICT_CUDA_NVLINK", ""), ',')) {
    int a = 0;
    int b = 0;
    int links = 0;
    if (std::sscanf(part.c_str(), "switch:%d", &links) == 1) config.switch_nvlinks = links;
    if (std::sscanf(part.c_str(), "%d-%d:%d", &a, &b, &links) != 3) continue;
    if (a < 0 || b < 0 || a >= count || b >= count) continue;
    config.nvlinks[a][b] = config.nvlinks[b][a] = links;
  }
}

// As the driver parses CUDA_VISIBLE_DEVICES: ordinals or UUIDs (prefixes count), up to the first
// invalid one.
std::vector<int> ReadVisible(const std::vector<DeviceConfig>& devices) {
  std::vector<int> visible;
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (const DeviceConfig& device : devices) visible.push_back(device.physical);
    return visible;
  }
  for (const std::string& part : SplitText(text, ',')) {
    int found = -1;
    char* end = nullptr;
    const long number = std::strtol(part.c_str(), &end, 10);  // NOLINT: strtol's type
    if (end != part.c_str() && *end == '\0') {
      if (number >= 0 && static_cast<size_t>(number) < devices.size()) {
        found = static_cast<int>(number);
      }
    } else {
      for (const DeviceConfig& device : devices) {
        if (device.uuid_text.rfind(part, 0) == 0) found = device.physical;
      }
    }
    if (found < 0) break;
    if (std::find(visible.begin(), visible.end(), found) != visible.end()) return {};
    visible.push_back(found);
  }
  return visible;
}

// `breach` is the value's former name.
bool IsViolation(const char* variable) {
  const std::string value = FromEnvironment(variable, "ignore");
  return value == "violation" || value == "breach";
}

// The driver's variable, which programs set, is above the machine's own number.
int ReadConnections() {
  const int64_t own = NumberFromEnvironment("STRICT_CUDA_CONNECTIONS", 8);
  const int64_t number = NumberFromEnvironment("CUDA_DEVICE_MAX_CONNECTIONS", own);
  return number == own && own == 0 ? 0 : static_cast<int>(std::clamp<int64_t>(number, 1, 32));
}

Config Read() {
  Config config;
  config.session = FromEnvironment("STRICT_CUDA_SESSION", "");
  const int count = static_cast<int>(
      std::clamp<int64_t>(NumberFromEnvironment("STRICT_CUDA_DEVICES", 2), 0, kMaxDevices));
  config.is_mig = NumberFromEnvironment("STRICT_CUDA_MIG", 0) != 0;
  const auto bus_ids = SplitText(FromEnvironment("STRICT_CUDA_PCI", ""), ',');
  for (int index = 0; index < count; ++index) {
    config.devices.push_back(MakeDevice(index, bus_ids, config.is_mig));
  }
  config.visible = ReadVisible(config.devices);
  // A process sees one instance, the first.
  if (config.is_mig && config.visible.size() > 1) config.visible.resize(1);
  config.memory_bytes =
      static_cast<size_t>(NumberFromEnvironment("STRICT_CUDA_MEMORY", int64_t{4} << 30));
  // Allocations are aligned to 512 and may share memory: a larger unit would tell others' bytes.
  config.size_unit = static_cast<size_t>(
      std::clamp<int64_t>(NumberFromEnvironment("STRICT_CUDA_SIZE_UNIT", 512), 1, 512));
  std::sscanf(FromEnvironment("STRICT_CUDA_COMPUTE", "9.0").c_str(), "%d.%d", &config.compute_major,
              &config.compute_minor);
  config.driver_version =
      static_cast<int>(NumberFromEnvironment("STRICT_CUDA_DRIVER_VERSION", 13000));
  config.nccl_version = static_cast<int>(NumberFromEnvironment("STRICT_CUDA_NCCL_VERSION", 22809));
  // Between instances there is no peer access.
  if (!config.is_mig) ReadPeers(config, count);
  ReadNvlinks(config, count);
  config.pcie_level = static_cast<int>(NumberFromEnvironment("STRICT_CUDA_PCIE_LEVEL", 40));
  config.fabric_cluster = static_cast<int>(NumberFromEnvironment("STRICT_CUDA_FABRIC", 0));
  config.pool_imports_once = FromEnvironment("STRICT_CUDA_POOL_IMPORTS", "many") == "once";
  config.connections = ReadConnections();
  config.init_ms = static_cast<int>(NumberFromEnvironment("STRICT_CUDA_INIT_MS", 0));
  config.deadlock_ms = static_cast<int>(NumberFromEnvironment("STRICT_CUDA_DEADLOCK_MS", 2000));
  config.nccl_peer_death_is_error =
      FromEnvironment("STRICT_CUDA_NCCL_PEER_DEATH", "spin") == "error";
  config.nccl_absent_rank =
      static_cast<int>(NumberFromEnvironment("STRICT_CUDA_NCCL_ABSENT_RANK", -1));
  config.nccl_abort_is_watched =
      FromEnvironment("STRICT_CUDA_NCCL_PEER_ABORT", "violation") != "ignore";
  const std::string windows = FromEnvironment("STRICT_CUDA_NCCL_WINDOWS", "puts");
  config.nccl_has_windows = windows != "none";
  config.nccl_has_puts = windows == "puts";
  config.nccl_waits_early = !IsViolation("STRICT_CUDA_NCCL_EARLY_WAIT");
  config.nccl_launch_us = static_cast<int>(NumberFromEnvironment("STRICT_CUDA_NCCL_LAUNCH_US", 60));
  config.nccl_memory = NumberFromEnvironment("STRICT_CUDA_NCCL_MEMORY", 0);
  for (const std::string& part : SplitText(FromEnvironment("STRICT_CUDA_ATTRIBUTES", ""), ',')) {
    int attribute = 0;
    int value = 0;
    if (std::sscanf(part.c_str(), "%d=%d", &attribute, &value) == 2) {
      config.attributes[attribute] = value;
    }
  }
  return config;
}

}  // namespace

const Config& GetConfig() {
  static const Config* const config = new Config(Read());
  return *config;
}

std::string FromEnvironment(const char* name, const std::string& otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

int64_t NumberFromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

std::vector<std::string> SplitText(const std::string& text, char by) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace strict_cuda
