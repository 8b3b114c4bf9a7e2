// SPDX-License-Identifier: Apache-2.0
// Calls over a TensorSource.
#include "rendezvous/grpc_recv_tensor_service.h"

#include <optional>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "coord/grpc_bytes.h"
#include "coord/grpc_errors.h"
#include "coord/grpc_raw_service.h"
#include "proto/ferry_tensor_stream.pb.h"
#include "proto/tf_worker.pb.h"

namespace ferry {
namespace {

// Reads a request of either form, whose fields are named alike, and asks for it.
template <typename Message>
void Ask(TensorSource& source, grpc::ByteBuffer bytes, Cancellation& cancellation,
         ServedCallback done) {
  Message message;
  if (!coord::ParseMessage(bytes, message)) {
    return std::move(done)(
        absl::InvalidArgumentError("the request for a tensor is no such message"), {});
  }
  source.Recv({.step_id = message.step_id(),
               .key = message.rendezvous_key(),
               .request_id = message.request_id()},
              &cancellation, std::move(done));
}

// Owned by gRPC, which deletes it when the call is over and nothing of it runs any more.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(grpc::ByteBuffer* response, size_t max_bytes)
      : response_(response), max_bytes_(max_bytes) {}

  void Start(TensorSource& source, const grpc::ByteBuffer& request) {
    Ask<tensorflow::RecvTensorRequest>(
        source, request, cancellation_,
        [this](absl::Status status, ServedValue value) { End(status, value); });
  }

 private:
  void End(absl::Status status, const ServedValue& value) {
    if (status.ok()) {
      absl::StatusOr<grpc::ByteBuffer> encoded = EncodeRecvTensorResponse(value, max_bytes_);
      if (encoded.ok()) {
        response_->Swap(&*encoded);
      } else {
        status = encoded.status();
      }
    }
    Finish(coord::ToGrpcStatus(status));
  }
  void OnCancel() override { cancellation_.Cancel(); }
  void OnDone() override { delete this; }

  grpc::ByteBuffer* const response_;
  const size_t max_bytes_;
  Cancellation cancellation_;
};

// As above. After each Start... and Finish it may be in the hands of another thread.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit StreamCall(size_t frame_bytes) : frame_bytes_(frame_bytes) {}

  void Start(TensorSource& source, const grpc::ByteBuffer& request) {
    Ask<v1::TensorStreamRequest>(source, request, cancellation_,
                                 [this](absl::Status status, ServedValue value) {
                                   if (!status.ok()) return Finish(coord::ToGrpcStatus(status));
                                   writer_.emplace(value, frame_bytes_);
                                   WriteNext();
                                 });
  }

 private:
  void WriteNext() {
    frame_ = writer_->Next();
    if (writer_->is_done()) {
      StartWriteAndFinish(&frame_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      StartWrite(&frame_);
    }
  }
  // Not called for the last one.
  void OnWriteDone(bool ok) override {
    if (ok) return WriteNext();
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
  }
  void OnCancel() override { cancellation_.Cancel(); }
  void OnDone() override { delete this; }

  const size_t frame_bytes_;
  Cancellation cancellation_;
  std::optional<FrameWriter> writer_;
  grpc::ByteBuffer frame_;
};

class RecvTensorService final : public coord::RawService {
 public:
  RecvTensorService(TensorSource& source, RecvTensorServiceOptions options) {
    AddUnary(kRecvTensorPath,
             [&source, options](grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) {
               auto* call = new UnaryCall(response, options.max_unary_bytes);
               call->Start(source, *request);
               return call;
             });
    AddUnary(kMarkRecvFinishedPath,
             [&source](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                       grpc::ByteBuffer* response) {
               tensorflow::MarkRecvFinishedRequest message;
               grpc::ByteBuffer bytes = *request;
               grpc::Status status;
               if (coord::ParseMessage(bytes, message)) {
                 source.MarkRecvFinished(message.request_id());
                 *response = coord::SerializeMessage(tensorflow::MarkRecvFinishedResponse());
               } else {
                 status = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                       "the request is no MarkRecvFinishedRequest");
               }
               grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
               reactor->Finish(status);
               return reactor;
             });
    if (!options.has_streams) return;
    AddServerStream(kTensorStreamPath, [&source, options](grpc::CallbackServerContext*,
                                                          const grpc::ByteBuffer* request) {
      auto* call = new StreamCall(options.frame_bytes);
      call->Start(source, *request);
      return call;
    });
  }
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRecvTensorService(TensorSource& source,
                                                     RecvTensorServiceOptions options) {
  return std::make_unique<RecvTensorService>(source, options);
}

}  // namespace ferry
