// SPDX-License-Identifier: Apache-2.0
// Encodes a RunGraphResponse without copying its tensors.
#ifndef FERRY_TENSORFLOW_WORKER_RUN_RESPONSE_H_
#define FERRY_TENSORFLOW_WORKER_RUN_RESPONSE_H_

#include <string>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/tf_worker.pb.h"
#include "tensor/tensor.h"

namespace ferry::worker {

// Encodes `response` with these tensors as its `recv`. Elements are not copied, unless they are
// few, or strings.
//   Errors: INVALID_ARGUMENT naming the size if it exceeds what a message can hold, or for a tensor
//   that is not in host memory.
absl::StatusOr<grpc::ByteBuffer> EncodeRunResponse(
    const tensorflow::RunGraphResponse& response,
    absl::Span<const std::pair<std::string, Tensor>> fetched);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_RUN_RESPONSE_H_
