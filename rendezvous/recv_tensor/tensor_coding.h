// SPDX-License-Identifier: Apache-2.0
// Tensors to and from messages without a copy on the way out and with one on the way in.
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

// Content of at most so many bytes is copied beside its header: cheaper than one more slice.
// Source: tensorflow/core/distributed_runtime/rpc/grpc_tensor_coding.cc, kLargeTensorBytes.
inline constexpr size_t kMaxCopiedBytes = 1024;
// What a RecvTensorResponse can hold: protocol buffers measure in ints.
inline constexpr size_t kMaxUnaryBytes = (size_t{1} << 31) - 4096;

// Where a tensor that arrives is put. Its bytes were checked against what has come or a limit.
using TensorAllocator = std::function<absl::StatusOr<Tensor>(DataType dtype, Shape shape)>;

// The tensor's elements as a slice that shares its buffer. REQUIRES: of fixed size.
grpc::Slice SliceOf(const Tensor& tensor);

// A tensorflow.RecvTensorResponse, whose content is the tensor's own memory if it is more than
// kMaxCopiedBytes. A dead value carries float[0], as TensorFlow's do.
//   Errors: INVALID_ARGUMENT above `max_bytes`, naming the size.
absl::StatusOr<grpc::ByteBuffer> EncodeRecvTensorResponse(const ServedValue& value,
                                                          size_t max_bytes = kMaxUnaryBytes);

// Where the elements of a message go.
struct DecodeTarget {
  // Where they are wanted; not valid: anywhere.
  Tensor destination;
  // Null: the heap.
  TensorAllocator allocator;
  // Null: nobody closes it.
  ClosableWriter* gate = nullptr;
};

// The value in a tensorflow.RecvTensorResponse of any writer. If type and shape come before the
// content, as Ferry and TensorFlow write them, the content is copied once, from the slices to where
// it stays; else the message is parsed as protocol buffers are. The tensor is `destination` if
// there is one.
//   Errors: INTERNAL for what is no such message; INVALID_ARGUMENT for a tensor that is none, or is
//   not of the destination's type and size; RESOURCE_EXHAUSTED;
//   CANCELLED when the gate was closed.
absl::StatusOr<ServedValue> DecodeRecvTensorResponse(grpc::ByteBuffer& bytes,
                                                     const DecodeTarget& target);

// `destination` for a tensor of that type and shape, or a new one.
//   Errors: INVALID_ARGUMENT naming both; the allocator's.
absl::StatusOr<Tensor> PlaceFor(DataType dtype, const Shape& shape, const DecodeTarget& target);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_CODING_H_
