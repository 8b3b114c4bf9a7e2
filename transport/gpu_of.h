// SPDX-License-Identifier: Apache-2.0
// Which GPU a place in a node's memory is, for transports between GPUs.
#ifndef FERRY_TRANSPORT_GPU_OF_H_
#define FERRY_TRANSPORT_GPU_OF_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "transport/transport.h"

namespace ferry {

// Its UUID.
//   side: "in" where the tensor lies, "for" where it is wanted; for the message.
//   Errors: FAILED_PRECONDITION: it is the host's memory, or of a GPU that the node does not use.
absl::StatusOr<std::string> GpuOf(const Endpoint& node, const TensorLocation& place,
                                  absl::string_view side);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_GPU_OF_H_
