// SPDX-License-Identifier: Apache-2.0
// NVML's information beyond the CUDA driver: paths between GPUs, and NVLink fabrics.
#ifndef FERRY_GPU_NVML_LINKS_H_
#define FERRY_GPU_NVML_LINKS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "gpu/nvml/nvml.h"
#include "topology/device.h"
#include "topology/link.h"

namespace ferry::nvml {

// Sets fabric_uuid of each of `gpus` that is in a fabric, and appends the path of each pair to
// `links`, sorted.
//   gpus: as described by the CUDA driver; looked up by UUID, or by PCI bus id, as for MIG slices.
// Omits pairs for which NVML reports nothing, and those with a GPU that it does not find. Errors:
// INTERNAL with the first call that failed; successful results are set nevertheless.
absl::Status AddLinks(const Nvml& nvml, absl::Span<ferry::Device> gpus,
                      std::vector<DeviceLink>& links);

}  // namespace ferry::nvml

#endif  // FERRY_GPU_NVML_LINKS_H_
