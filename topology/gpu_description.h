// SPDX-License-Identifier: Apache-2.0
// The description of a GPU that TensorFlow's clients receive.
#ifndef FERRY_TOPOLOGY_GPU_DESCRIPTION_H_
#define FERRY_TOPOLOGY_GPU_DESCRIPTION_H_

#include <string>

#include "absl/strings/str_cat.h"

#include "topology/device.h"

namespace ferry {

// "device: 1, name: NVIDIA H200, pci bus id: 0000:19:00.0, compute capability: 9.0".
inline std::string GpuDescription(const Device& device) {
  return absl::StrCat("device: ", device.ordinal, ", name: ", device.name,
                      ", pci bus id: ", device.pci_bus_id,
                      ", compute capability: ", device.compute_major, ".", device.compute_minor);
}

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_GPU_DESCRIPTION_H_
