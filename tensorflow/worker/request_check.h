// SPDX-License-Identifier: Apache-2.0
// Size check of a request before it is parsed.
#ifndef FERRY_TENSORFLOW_WORKER_REQUEST_CHECK_H_
#define FERRY_TENSORFLOW_WORKER_REQUEST_CHECK_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/proto_buffer_reader.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

#include "tensorflow/graph/request_size.h"
#include "tensorflow/worker/worker.h"

namespace ferry::worker {

//   Errors: as graph::CheckRequestSize.
inline absl::Status CheckSize(const Worker& worker, const google::protobuf::Descriptor& type,
                              grpc::ByteBuffer& bytes) {
  const WorkerLimits& limits = worker.options().limits;
  grpc::ProtoBufferReader reader(&bytes);
  return graph::CheckRequestSize(type, reader, bytes.Length(),
                                 {limits.max_request_bytes, static_cast<size_t>(limits.max_nodes),
                                  "WorkerLimits::max_request_bytes", "WorkerLimits::max_nodes"});
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_REQUEST_CHECK_H_
