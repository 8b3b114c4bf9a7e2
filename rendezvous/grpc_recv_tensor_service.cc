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
#include "rendezvous/grpc_call_marks.h"

namespace ferry {
namespace {

// What both kinds of call have in common.
struct Asked {
  grpc::CallbackServerContext* const context;
  const RecvTensorServiceOptions& options;
  Cancellation cancellation;

  // Reads a request of either form, whose fields are named alike, and asks for it.
  template <typename Message>
  void Ask(TensorSource& source, grpc::ByteBuffer bytes, ServedCallback done) {
    Message message;
    if (!coord::ParseMessage(bytes, message)) {
      return std::move(done)(
          absl::InvalidArgumentError("the request for a tensor is no such message"), {});
    }
    const TensorCall call = {message.step_id(), message.request_id(), message.rendezvous_key()};
    if (absl::Status status = CheckCall(context->client_metadata(), call); !status.ok()) {
      return std::move(done)(std::move(status), {});
    }
    source.Recv({.step_id = call.step_id, .key = call.key, .request_id = call.request_id},
                &cancellation, std::move(done));
  }
  // Before the call is finished.
  void AddMarks(const ServedValue& value) {
    if (!options.checksum && !FindMark(context->client_metadata(), kChecksumMark)) return;
    context->AddTrailingMetadata(kChecksumMark, ChecksumMark(value));
  }
};

// Owned by gRPC, which deletes it when the call is over and nothing of it runs any more.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(grpc::CallbackServerContext* context, const RecvTensorServiceOptions& options,
            grpc::ByteBuffer* response)
      : asked_{context, options, {}}, response_(response) {}

  void Start(TensorSource& source, const grpc::ByteBuffer& request) {
    asked_.Ask<tensorflow::RecvTensorRequest>(
        source, request,
        [this](absl::Status status, ServedValue value) { End(std::move(status), value); });
  }

 private:
  void End(absl::Status status, const ServedValue& value) {
    if (status.ok()) {
      absl::StatusOr<grpc::ByteBuffer> encoded =
          EncodeRecvTensorResponse(value, asked_.options.max_unary_bytes);
      if (encoded.ok()) {
        asked_.AddMarks(value);
        response_->Swap(&*encoded);
      } else {
        status = encoded.status();
      }
    }
    Finish(coord::ToGrpcStatus(status));
  }
  void OnCancel() override { asked_.cancellation.Cancel(); }
  void OnDone() override { delete this; }

  Asked asked_;
  grpc::ByteBuffer* const response_;
};

// As above. After each Start... and Finish it may be in the hands of another thread.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  StreamCall(grpc::CallbackServerContext* context, const RecvTensorServiceOptions& options)
      : asked_{context, options, {}} {}

  void Start(TensorSource& source, const grpc::ByteBuffer& request) {
    asked_.Ask<v1::TensorStreamRequest>(source, request,
                                        [this](absl::Status status, ServedValue value) {
                                          if (!status.ok())
                                            return Finish(coord::ToGrpcStatus(status));
                                          asked_.AddMarks(value);
                                          writer_.emplace(value, asked_.options.frame_bytes);
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
  void OnCancel() override { asked_.cancellation.Cancel(); }
  void OnDone() override { delete this; }

  Asked asked_;
  std::optional<FrameWriter> writer_;
  grpc::ByteBuffer frame_;
};

class RecvTensorService final : public coord::RawService {
 public:
  RecvTensorService(TensorSource& source, RecvTensorServiceOptions options)
      : options_(std::move(options)) {
    AddUnary(kRecvTensorPath,
             [this, &source](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                             grpc::ByteBuffer* response) {
               auto* call = new UnaryCall(context, options_, response);
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
    if (!options_.has_streams) return;
    AddServerStream(kTensorStreamPath, [this, &source](grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) {
      auto* call = new StreamCall(context, options_);
      call->Start(source, *request);
      return call;
    });
  }

 private:
  const RecvTensorServiceOptions options_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRecvTensorService(TensorSource& source,
                                                     RecvTensorServiceOptions options) {
  return std::make_unique<RecvTensorService>(source, std::move(options));
}

}  // namespace ferry
