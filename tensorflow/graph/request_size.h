// SPDX-License-Identifier: Apache-2.0
// How large a request gets when it is parsed, found out before it is.
#ifndef FERRY_TENSORFLOW_GRAPH_REQUEST_SIZE_H_
#define FERRY_TENSORFLOW_GRAPH_REQUEST_SIZE_H_

#include <cstddef>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ferry::graph {

// At most so many bytes of memory come of one byte of a message: two bytes are an empty message in
// a list, and the largest one is a TensorProto.
inline constexpr size_t kMaxExpansion = 256;

struct RequestSize {
  // Of memory: objects and strings, but not what tensors are made of them.
  size_t bytes = 0;
  // NodeDefs, those of functions among them.
  size_t nodes = 0;
  // Whether the bytes can be such a message at all.
  bool is_message = true;
};

// Walks over the bytes of a message of that type, and takes no memory for it.
RequestSize MeasureRequest(const google::protobuf::Descriptor& type,
                           google::protobuf::io::ZeroCopyInputStream& wire);

struct RequestLimits {
  size_t max_bytes = size_t{4} << 30;
  size_t max_nodes = size_t{1} << 22;
  // For errors: what these are called.
  absl::string_view max_bytes_name = "max_request_bytes";
  absl::string_view max_nodes_name = "max_graph_nodes";
};

// Whether a message of so many bytes may be parsed. Small ones are not looked at.
//   wire_bytes: of the message, after any decompression.
//   Errors: RESOURCE_EXHAUSTED naming the limit; INVALID_ARGUMENT for what is looked at and is no
//   such message.
absl::Status CheckRequestSize(const google::protobuf::Descriptor& type,
                              google::protobuf::io::ZeroCopyInputStream& wire, size_t wire_bytes,
                              const RequestLimits& limits);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_REQUEST_SIZE_H_
