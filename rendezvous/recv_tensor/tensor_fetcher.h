// SPDX-License-Identifier: Apache-2.0
// GrpcTensorFetcher: gets values from other workers over gRPC.
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

// HOST:PORT of a task's worker. Thread-safe; does not block.
using WorkerResolver = std::function<absl::StatusOr<std::string>(const TaskName&)>;

struct GrpcTensorFetcherOptions {
  // Null: the heap. For receives without a destination.
  TensorAllocator allocator;
  // Of a tensor that arrives as a stream.
  size_t max_tensor_bytes = kMaxStreamedBytes;
  // False: only TensorFlow's call, never the stream.
  bool use_streams = true;
  // Of each request a checksum goes along, and one of the value is asked for and compared.
  // TensorFlow's workers know of none, and what they send is taken without.
  bool checksum = false;
  // The job's: requests prove to be of it. TensorFlow's workers do not look. Empty: they do not.
  std::string token;
  // After UNAVAILABLE; as many as TensorFlow's (kMaxWorkerRpcRetries).
  int max_retries = 10;
  // Before the first retry; doubles from one to the next.
  absl::Duration initial_backoff = absl::Milliseconds(20);
  absl::Duration max_backoff = absl::Seconds(1);
};

class TensorFetchCore;

// Thread-safe. Fetches may outlive it.
//   1. The request goes out as ferry.v1.TensorStream/Recv; to a task that does not know that, as
//      tensorflow.WorkerService/RecvTensor, which is remembered until Forget.
//   2. It has a random id, which stays the same in retries. They follow UNAVAILABLE, as long as
//      nothing of the answer has come, or the answer said that it is kept. They are safe by that
//      id: a worker that never saw the request serves it; so does one that noticed that its client
//      had gone before the value came; one that keeps responses gives the same again; and one that
//      has given the value away, or has not noticed yet, refuses with ABORTED. The fetch goes on
//      asking after that, and ends with the UNAVAILABLE before it. No value is taken twice, and
//      none instead of another.
//   3. The content is copied once, into the destination if there is one. A value that is kept is
//      acknowledged with MarkRecvFinished.
//   Errors of a fetch: the source's own; INTERNAL "No worker known as" if the resolver knows none
//   (NOT_FOUND), else the resolver's; UNAVAILABLE, DEADLINE_EXCEEDED and INTERNAL (an answer that
//   is none) naming task and key, and so does DATA_LOSS for a checksum that does not match;
//   INVALID_ARGUMENT for a value that is not of the destination's
//   type and size; CANCELLED by RemoteFetch::Cancel, after which nothing is written to the
//   destination.
// RecvArgs::cancellation is the caller's business; `done` runs on gRPC's or a timer's thread.
// Source: tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.cc.
class GrpcTensorFetcher final : public RemoteFetcher {
 public:
  // `clock`: of deadlines; outlives the fetches.
  GrpcTensorFetcher(const Clock& clock, WorkerResolver resolver,
                    GrpcTensorFetcherOptions options = {});
  ~GrpcTensorFetcher() override;

  std::shared_ptr<RemoteFetch> Fetch(int64_t step_id, const RendezvousKey& key,
                                     const RecvArgs& args, RecvCallback done) override;

  // The task has failed or moved: the next fetch resolves it anew and connects again. Fetches under
  // way go on; RendezvousManager::FailTask ends them.
  void Forget(const TaskName& task);

 private:
  const std::shared_ptr<TensorFetchCore> core_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FETCHER_H_
