// SPDX-License-Identifier: Apache-2.0
// Messages to and from gRPC byte buffers.
#ifndef FERRY_COORD_WIRE_BYTES_H_
#define FERRY_COORD_WIRE_BYTES_H_

#include <string>

#include <google/protobuf/message_lite.h>
#include <grpcpp/impl/codegen/proto_buffer_reader.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/strings/string_view.h"

namespace ferry::coord {

// Returns false if the bytes are not such a message.
inline bool ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::MessageLite& message) {
  // Small messages are one slice: no reader is needed.
  if (grpc::Slice slice; bytes.TrySingleSlice(&slice).ok()) {
    return message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
  }
  grpc::ProtoBufferReader reader(&bytes);
  return reader.status().ok() && message.ParseFromZeroCopyStream(&reader);
}

// REQUIRES: the message is under 2 GiB.
inline grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

// Returns the buffer as one slice; copies only if it has several.
inline grpc::Slice Flatten(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  if (bytes.TrySingleSlice(&slice).ok()) return slice;
  if (!bytes.DumpToSingleSlice(&slice).ok()) return grpc::Slice();
  return slice;
}

inline absl::string_view View(const grpc::Slice& slice) {
  return absl::string_view(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

}  // namespace ferry::coord

#endif  // FERRY_COORD_WIRE_BYTES_H_
