// SPDX-License-Identifier: Apache-2.0
// Normalises PCI bus ids, so that those of CUDA, NVML, sysfs and NCCL's files compare equal.
#ifndef FERRY_TOPOLOGY_PCI_BUS_ID_H_
#define FERRY_TOPOLOGY_PCI_BUS_ID_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ferry {

// Returns `text` as "dddd:bb:dd.f" in lower case, or nullopt if it is not a PCI bus id.
//   text: domain of 4 to 8 hexadecimal digits (NVML writes 8, the others 4), bus, device,
//   function. More than 4 digits of the domain are kept only where they are not leading zeros.
// Source: the PCI specification's domain:bus:device.function; nvml.h, NVML_DEVICE_PCI_BUS_ID_FMT.
std::optional<std::string> NormalizePciBusId(absl::string_view text);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_PCI_BUS_ID_H_
