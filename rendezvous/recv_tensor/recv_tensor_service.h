// SPDX-License-Identifier: Apache-2.0
// The gRPC methods by which other workers fetch this worker's values.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_RECV_TENSOR_SERVICE_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_RECV_TENSOR_SERVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <grpcpp/impl/codegen/service_type.h>

#include "rendezvous/recv_tensor/call_auth.h"
#include "rendezvous/recv_tensor/tensor_coding.h"
#include "rendezvous/recv_tensor/tensor_frames.h"
#include "rendezvous/tensor_source.h"

namespace ferry {

inline constexpr char kRecvTensorPath[] = "/tensorflow.WorkerService/RecvTensor";
inline constexpr char kMarkRecvFinishedPath[] = "/tensorflow.WorkerService/MarkRecvFinished";
inline constexpr char kTensorStreamPath[] = "/ferry.v1.TensorStream/Recv";

struct RecvTensorServiceOptions {
  // False: only TensorFlow's method, as in TensorFlow's workers.
  bool has_streams = true;
  // Limit for a tensor in a unary response.
  size_t max_unary_bytes = kMaxUnaryBytes;
  // Content bytes of one frame of a stream.
  size_t frame_bytes = kFrameBytes;
  // Send a checksum of the value with every response, not only where the client requests it.
  bool checksum = false;
  // By default every client may make requests.
  AuthPolicy auth;
  // Counts calls that failed authentication; outlives the service. Null: not counted.
  std::atomic<int64_t>* refused = nullptr;
};

// Serves the three paths above from `source`, which outlives the server. A call waiting for its
// value occupies no thread, and only gRPC's own memory; it ends when its client disconnects or its
// deadline passes, and then leaves the value to others (TensorSource::Recv). The sending thread
// encodes the value without copying it, and starts writing it.
//   Errors of RecvTensor and Recv: as TensorSource::Recv; INVALID_ARGUMENT for a malformed request
//   and, for RecvTensor, for a tensor above max_unary_bytes, which is then lost; DATA_LOSS for a
//   request corrupted in transit; UNAUTHENTICATED for one that fails authentication (call_auth.h).
std::unique_ptr<grpc::Service> MakeRecvTensorService(TensorSource& source,
                                                     RecvTensorServiceOptions options = {});

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_RECV_TENSOR_SERVICE_H_
