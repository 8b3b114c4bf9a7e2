// SPDX-License-Identifier: Apache-2.0
// The calls by which other workers get this one's values.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_RECV_TENSOR_SERVICE_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_RECV_TENSOR_SERVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <grpcpp/impl/codegen/service_type.h>

#include "rendezvous/recv_tensor/call_marks.h"
#include "rendezvous/recv_tensor/tensor_coding.h"
#include "rendezvous/recv_tensor/tensor_frames.h"
#include "rendezvous/tensor_source.h"

namespace ferry {

inline constexpr char kRecvTensorPath[] = "/tensorflow.WorkerService/RecvTensor";
inline constexpr char kMarkRecvFinishedPath[] = "/tensorflow.WorkerService/MarkRecvFinished";
inline constexpr char kTensorStreamPath[] = "/ferry.v1.TensorStream/Recv";

struct RecvTensorServiceOptions {
  // False: only TensorFlow's calls, as TensorFlow's workers have them.
  bool has_streams = true;
  // Of a tensor that a unary answer carries.
  size_t max_unary_bytes = kMaxUnaryBytes;
  // Content of one frame of a stream.
  size_t frame_bytes = kFrameBytes;
  // A checksum of the value goes along with every answer, not only where the client asks for it.
  bool checksum = false;
  // By default everyone may ask.
  ProofPolicy proof;
  // Counts calls that did not prove what they should; outlives the service. Null: nobody counts.
  std::atomic<int64_t>* refused = nullptr;
};

// The three paths above, over `source`, which outlives the server. A call that waits for its value
// holds no thread, and memory only as gRPC's calls do; it ends when its client goes away or its
// deadline comes, and then leaves the value to others (TensorSource::Recv). Whoever sends a value
// encodes it, without copying it, and begins to write it.
//   Errors of RecvTensor and Recv: as TensorSource::Recv; INVALID_ARGUMENT for a request that is
//   none, and, of RecvTensor, for a tensor above max_unary_bytes, which is then lost; DATA_LOSS for
//   a request that is not the one its client has sent, and UNAUTHENTICATED for one that does not
//   prove what it should (grpc_call_marks.h).
std::unique_ptr<grpc::Service> MakeRecvTensorService(TensorSource& source,
                                                     RecvTensorServiceOptions options = {});

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_RECV_TENSOR_SERVICE_H_
