// SPDX-License-Identifier: Apache-2.0
// Bounds the memory a request takes once parsed, before it is parsed.
#ifndef FERRY_TENSORFLOW_GRAPH_REQUEST_SIZE_H_
#define FERRY_TENSORFLOW_GRAPH_REQUEST_SIZE_H_

#include <cstddef>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ferry::graph {

// Upper bound on the memory per wire byte: two bytes can encode an empty message in a repeated
// field, and the largest such message is a TensorProto.
inline constexpr size_t kMaxExpansion = 256;

struct RequestSize {
  // Bytes of memory: objects and strings, without the tensors made from them.
  size_t bytes = 0;
  // Number of NodeDefs, including those of functions.
  size_t nodes = 0;
  // False if the bytes cannot be such a message.
  bool is_message = true;
};

// Measures an encoded message of that type without allocating memory for it.
RequestSize MeasureRequest(const google::protobuf::Descriptor& type,
                           google::protobuf::io::ZeroCopyInputStream& wire);

struct RequestLimits {
  size_t max_bytes = size_t{4} << 30;
  size_t max_nodes = size_t{1} << 22;
  // The names of the limits in error messages.
  absl::string_view max_bytes_name = "max_request_bytes";
  absl::string_view max_nodes_name = "max_graph_nodes";
};

// Checks that an encoded message may be parsed. Small messages are not examined.
//   wire_bytes: size of the message, after any decompression.
//   Errors: RESOURCE_EXHAUSTED naming the limit; INVALID_ARGUMENT if an examined message is
//   malformed.
absl::Status CheckRequestSize(const google::protobuf::Descriptor& type,
                              google::protobuf::io::ZeroCopyInputStream& wire, size_t wire_bytes,
                              const RequestLimits& limits);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_REQUEST_SIZE_H_
