// SPDX-License-Identifier: Apache-2.0
// Looks the GPU up in the node's published endpoint.
#include "transport/gpu_of.h"

#include "absl/strings/str_cat.h"

namespace ferry {

absl::StatusOr<std::string> GpuOf(const Endpoint& node, const TensorLocation& location,
                                  absl::string_view side) {
  if (location.space != MemorySpace::kCuda) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is ", side, " host memory: this is for GPUs"));
  }
  if (location.ordinal < 0 || static_cast<size_t>(location.ordinal) >= node.gpus.size() ||
      node.gpus[static_cast<size_t>(location.ordinal)].empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(node.peer), " has no ", ToString(location), " that is in use"));
  }
  return node.gpus[static_cast<size_t>(location.ordinal)];
}

}  // namespace ferry
