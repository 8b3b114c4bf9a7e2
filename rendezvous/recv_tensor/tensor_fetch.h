// SPDX-License-Identifier: Apache-2.0
// One fetch through its attempts, and state shared by all fetches.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FETCH_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FETCH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "rendezvous/recv_tensor/tensor_fetcher.h"
#include "tensor/closable_writer.h"

namespace ferry {

// A connection to a task's worker. Thread-safe.
struct TensorPeer {
  TensorPeer(std::string address, std::shared_ptr<grpc::Channel> channel);

  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const grpc::internal::RpcMethod stream;
  const grpc::internal::RpcMethod unary;
  const grpc::internal::RpcMethod mark_finished;
  // False once it has answered that it does not support streams.
  std::atomic<bool> has_streams{true};
};

// Thread-safe.
class TensorFetchCore final {
 public:
  TensorFetchCore(const Clock& clock, WorkerResolver resolver, GrpcTensorFetcherOptions options);

  const Clock& clock() const { return clock_; }
  const GrpcTensorFetcherOptions& options() const { return options_; }

  //   Errors: INTERNAL "No worker known as ..."; the resolver's.
  absl::StatusOr<std::shared_ptr<TensorPeer>> PeerOf(const TaskName& task) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const TaskName& task) ABSL_LOCKS_EXCLUDED(mu_);
  // Random, nonzero and unique.
  int64_t NewRequestId();

 private:
  // Constant after construction.
  const Clock& clock_;
  const WorkerResolver resolver_;
  const GrpcTensorFetcherOptions options_;

  std::atomic<uint64_t> next_id_;
  absl::Mutex mu_;
  absl::flat_hash_map<TaskName, std::shared_ptr<TensorPeer>> peers_ ABSL_GUARDED_BY(mu_);
};

// The result of an attempt.
struct FetchOutcome {
  absl::Status status;
  // Valid if the status is OK.
  ServedValue value;
  // Whether part of the response arrived; and whether it said that the value is kept.
  bool has_begun = false;
  bool is_kept = false;
};

// Thread-safe. Referenced by the caller, and by its pending attempt or timer, of which there is at
// most one.
class TensorFetch final : public RemoteFetch, public std::enable_shared_from_this<TensorFetch> {
 public:
  TensorFetch(std::shared_ptr<TensorFetchCore> core, int64_t step_id, RendezvousKey key,
              const RecvArgs& args, RecvCallback done);

  // Call once.
  void Start();
  void Cancel() override ABSL_LOCKS_EXCLUDED(mu_);

  // For its attempts.
  const TensorFetchCore& core() const { return *core_; }
  DecodeTarget target();
  grpc::ByteBuffer StreamRequest() const;
  grpc::ByteBuffer UnaryRequest() const;
  // Verifies that the received value is what was sent.
  //   Errors: DATA_LOSS; INVALID_ARGUMENT if its bytes are not valid elements of its type
  //   (CheckValues).
  absl::Status CheckAnswer(const grpc::ClientContext& context, bool is_stream,
                           const ServedValue& value) const;
  // An error for a received value that is not a valid tensor, naming its sender.
  absl::Status OfSender(const absl::Status& status) const;
  void OnAttemptDone(const std::shared_ptr<TensorPeer>& peer, bool is_stream, FetchOutcome outcome)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Attempt() ABSL_LOCKS_EXCLUDED(mu_);
  // Retries, or ends with `status` if that is not OK, on a timer's thread.
  void Later(absl::Duration delay, absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  void End(absl::Status status, ServedValue value = {});
  bool MayRetry(const FetchOutcome& outcome) const;
  // True if the worker has not noticed yet that the previous attempt is over, or has given the
  // value to it.
  bool IsRefusedRetry(const absl::Status& status) const;
  absl::Duration NextBackoff();
  absl::Status Explain(const absl::Status& status, const std::string& address) const;

  // Constant after construction.
  const std::shared_ptr<TensorFetchCore> core_;
  const int64_t step_id_;
  const RendezvousKey key_;
  const RecvArgs args_;
  const int64_t request_id_;

  // Owned by the one attempt.
  RecvCallback done_;
  int retries_ = 0;
  // Error that caused the second attempt, or the latest retry.
  absl::Status last_error_;

  ClosableWriter gate_;
  // Never held while calling out.
  absl::Mutex mu_;
  bool is_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FETCH_H_
