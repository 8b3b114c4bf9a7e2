// SPDX-License-Identifier: Apache-2.0
// Encodes tensors without a copy, and decodes them with one.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CODING_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CODING_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "rendezvous/response_cache.h"
#include "tensor/closable_writer.h"
#include "tensor/tensor.h"

namespace ferry {

// Content up to this size is copied next to its header: cheaper than another slice.
// Source: tensorflow/core/distributed_runtime/rpc/grpc_tensor_coding.cc, kLargeTensorBytes.
inline constexpr size_t kMaxCopiedBytes = 1024;
// Capacity of a RecvTensorResponse: protocol buffers use int sizes.
inline constexpr size_t kMaxUnaryBytes = (size_t{1} << 31) - 4096;

// Allocates a received tensor. Its size was checked against the received bytes, or a limit.
using TensorAllocator = std::function<absl::StatusOr<Tensor>(DataType dtype, Shape shape)>;

// The tensor's elements as a slice that shares its buffer. REQUIRES: elements of fixed size.
grpc::Slice SliceOf(const Tensor& tensor);

// Returns a tensorflow.RecvTensorResponse, whose content is the tensor's own memory if it is more
// than kMaxCopiedBytes. A dead value has content float[0], as in TensorFlow.
//   Errors: INVALID_ARGUMENT above `max_bytes`, naming the size.
absl::StatusOr<grpc::ByteBuffer> EncodeRecvTensorResponse(const ServedValue& value,
                                                          size_t max_bytes = kMaxUnaryBytes);

// Where to put the elements of a message.
struct DecodeTarget {
  // The requested destination; not valid: anywhere.
  Tensor destination;
  // Null: the heap.
  TensorAllocator allocator;
  // Null: cannot be closed.
  ClosableWriter* gate = nullptr;
};

// Decodes a tensorflow.RecvTensorResponse from any encoder. If type and shape precede the content,
// as Ferry and TensorFlow write them, the content is copied once, from the slices to its
// destination; else the message is parsed as a protocol buffer. The tensor is `destination` if
// there is one.
//   Errors: INTERNAL for a malformed message; INVALID_ARGUMENT for an invalid tensor, or one that
//   is not of the destination's type and size; RESOURCE_EXHAUSTED; CANCELLED when the gate was
//   closed.
absl::StatusOr<ServedValue> DecodeRecvTensorResponse(grpc::ByteBuffer& bytes,
                                                     const DecodeTarget& target);

// Returns the destination, if there is one, for a tensor of that type and shape; else a new tensor.
//   Errors: INVALID_ARGUMENT naming both; the allocator's.
absl::StatusOr<Tensor> DestinationFor(DataType dtype, const Shape& shape,
                                      const DecodeTarget& target);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CODING_H_
