// SPDX-License-Identifier: Apache-2.0
// Reads feeds from the request; writes errors into the response if requested.
#include "tensorflow/worker/run_call.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "coord/wire/bytes.h"
#include "coord/wire/errors.h"
#include "proto/tf_worker.pb.h"
#include "rendezvous/recv_tensor/derived.h"
#include "tensor/bytes_of_proto.h"
#include "tensor/tensor_proto.h"
#include "tensorflow/worker/request_check.h"
#include "tensorflow/worker/run_response.h"
#include "tensorflow/worker/step_stats.h"

namespace ferry::worker {
namespace {

absl::StatusOr<RunRequest> ReadRequest(Worker& worker, tensorflow::RunGraphRequest& message) {
  RunRequest request;
  // Checked before allocating: a few bytes can declare a billion elements.
  size_t bytes = 0;
  for (const tensorflow::NamedTensorProto& named : message.send()) {
    bytes = AddBytes(bytes, DecodedBytes(named.tensor()));
  }
  FERRY_ASSIGN_OR_RETURN(request.feed_share, worker.ShareOfFeeds(bytes));
  if (message.create_worker_session_called()) request.session = message.session_handle();
  request.graph = message.graph_handle();
  request.step_id = message.step_id();
  request.request_id = message.request_id();
  for (int i = 0; i < message.send_size(); ++i) {
    tensorflow::NamedTensorProto& named = *message.mutable_send(i);
    absl::StatusOr<Tensor> tensor = TensorFromProto(named.tensor());
    if (!tensor.ok()) {
      return absl::Status(tensor.status().code(),
                          absl::StrCat("Invalid TensorProto for feed value ", i, ", ",
                                       Quoted(named.name()), ": ", tensor.status().message()));
    }
    request.feeds.emplace_back(named.name(), *std::move(tensor));
    // Free the message's copy.
    named.clear_tensor();
  }
  for (const std::string& key : message.recv_key()) request.fetches.push_back(key);
  request.is_partial = message.is_partial();
  request.is_last_partial = message.is_last_partial_run();
  const tensorflow::ExecutorOpts& options = message.exec_opts();
  request.record_times = options.record_timeline() || options.record_costs();
  return request;
}

// Owned by gRPC, which deletes it when the call is over and none of its reactions runs.
class RunCall final : public grpc::ServerUnaryReactor {
 public:
  explicit RunCall(grpc::ByteBuffer* response) : response_(response) {}

  void Start(Worker& worker, const grpc::ByteBuffer& bytes) {
    tensorflow::RunGraphRequest message;
    grpc::ByteBuffer copy = bytes;
    if (absl::Status status = CheckSize(worker, *message.GetDescriptor(), copy); !status.ok()) {
      return Finish(coord::ToGrpcStatus(status));
    }
    if (!coord::ParseMessage(copy, message)) {
      return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                 "the request is no tensorflow.RunGraphRequest"));
    }
    copy.Clear();
    errors_in_body_ = message.store_errors_in_response_body();
    wants_graph_ = message.exec_opts().record_partition_graphs();
    absl::StatusOr<RunRequest> request = ReadRequest(worker, message);
    if (!request.ok()) return End(request.status(), {});
    worker.RunGraph(*std::move(request), &cancellation_,
                    [this](absl::Status status, RunResult result) {
                      End(std::move(status), std::move(result));
                    });
  }

 private:
  void End(absl::Status status, RunResult result) {
    tensorflow::RunGraphResponse message;
    if (result.graph != nullptr) {
      FillStepStats(*result.graph, result.times, *message.mutable_step_stats());
      if (result.times.empty()) message.clear_step_stats();
      if (wants_graph_) *message.add_partition_graph() = result.graph->Def();
    }
    if (status.ok()) {
      absl::StatusOr<grpc::ByteBuffer> encoded = EncodeRunResponse(message, result.fetched);
      if (encoded.ok()) {
        response_->Swap(&*encoded);
        return Finish(grpc::Status::OK);
      }
      status = encoded.status();
    }
    // They may be what made the response too large.
    message.clear_partition_graph();
    if (!errors_in_body_) return Finish(ToGrpcAnswer(status));
    message.set_status_code(static_cast<tensorflow::error::Code>(status.code()));
    message.set_status_error_message(std::string(status.message()));
    *response_ = coord::SerializeMessage(message);
    Finish(grpc::Status::OK);
  }
  void OnCancel() override { cancellation_.Cancel(); }
  void OnDone() override { delete this; }

  grpc::ByteBuffer* const response_;
  CancellationToken cancellation_;
  bool errors_in_body_ = false;
  bool wants_graph_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* StartRunCall(Worker& worker, const grpc::ByteBuffer& request,
                                       grpc::ByteBuffer* response) {
  auto* call = new RunCall(response);
  call->Start(worker, request);
  return call;
}

}  // namespace ferry::worker
