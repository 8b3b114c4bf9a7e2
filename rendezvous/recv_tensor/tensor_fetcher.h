// SPDX-License-Identifier: Apache-2.0
// GrpcTensorFetcher: fetches values from other workers over gRPC.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FETCHER_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FETCHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "rendezvous/device_name.h"
#include "rendezvous/recv_tensor/tensor_coding.h"
#include "rendezvous/recv_tensor/tensor_frames.h"
#include "rendezvous/remote_rendezvous.h"

namespace ferry {

// Returns HOST:PORT of a task's worker. Thread-safe; does not block.
using WorkerResolver = std::function<absl::StatusOr<std::string>(const TaskName&)>;

struct GrpcTensorFetcherOptions {
  // For receives without a destination. Null: the heap.
  TensorAllocator allocator;
  // Limit for a tensor received as a stream.
  size_t max_tensor_bytes = kMaxStreamedBytes;
  // False: only TensorFlow's method, never the stream.
  bool use_streams = true;
  // Send a checksum with each request, and request and verify the value's. TensorFlow's workers do
  // not support it, and their values are accepted without.
  bool checksum = false;
  // The job's token, for authenticating requests; TensorFlow's workers ignore it. Empty: none.
  std::string token;
  // Retries after UNAVAILABLE; as many as TensorFlow's (kMaxWorkerRpcRetries).
  int max_retries = 10;
  // Delay before the first retry; doubles each time.
  absl::Duration initial_backoff = absl::Milliseconds(20);
  absl::Duration max_backoff = absl::Seconds(1);
};

class TensorFetchCore;

// Thread-safe. Fetches may outlive it.
//   1. The request is sent as ferry.v1.TensorStream/Recv; to a task that does not support that, as
//      tensorflow.WorkerService/RecvTensor, which is remembered until Forget.
//   2. It has a random id, which is the same in retries. Retries follow UNAVAILABLE, as long as no
//      part of the response has arrived, or the response said that the value is kept. The id makes
//      them safe: a worker that never received the request serves it; so does one that noticed that
//      its client had disconnected before the value was sent; one that keeps responses returns the
//      same one again; and one that has given the value away, or has not noticed yet, rejects with
//      ABORTED. The fetch keeps retrying after that, and ends with the UNAVAILABLE before it. No
//      value is delivered twice, and none instead of another.
//   3. The content is copied once, into the destination if there is one. A value that is kept is
//      acknowledged with MarkRecvFinished.
//   Errors of a fetch: the source's own; INTERNAL "No worker known as" if the resolver returns
//   NOT_FOUND, else the resolver's error; UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL (a malformed
//   response) and DATA_LOSS (checksum mismatch), each naming task and key; INVALID_ARGUMENT for a
//   value that is not of the destination's type and size; CANCELLED by RemoteFetch::Cancel, after
//   which nothing is written to the destination.
// RecvArgs::cancellation is handled by the caller; `done` runs on a gRPC or timer thread.
// Source: tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.cc.
class GrpcTensorFetcher final : public RemoteFetcher {
 public:
  // `clock`: for deadlines; must outlive the fetches.
  GrpcTensorFetcher(const Clock& clock, WorkerResolver resolver,
                    GrpcTensorFetcherOptions options = {});
  ~GrpcTensorFetcher() override;

  std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                     const RecvArgs& args, RecvCallback done) override;

  // The task has failed or moved: the next fetch resolves it again and reconnects. Pending fetches
  // continue; RendezvousManager::FailTask ends them.
  void Forget(const TaskName& task);

 private:
  const std::shared_ptr<TensorFetchCore> core_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FETCHER_H_
