// SPDX-License-Identifier: Apache-2.0
// Maps a tensor's location on a node to a GPU, for transports between GPUs.
#ifndef FERRY_TRANSPORT_GPU_OF_H_
#define FERRY_TRANSPORT_GPU_OF_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transport/transport.h"

namespace ferry {

// Returns the GPU's UUID.
//   side: for the message: "in" where the tensor is, "for" where it is requested.
//   Errors: FAILED_PRECONDITION: it is host memory, or a GPU that the node does not use.
absl::StatusOr<std::string> GpuOf(const Endpoint& node, const TensorLocation& location,
                                  absl::string_view side);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_GPU_OF_H_
