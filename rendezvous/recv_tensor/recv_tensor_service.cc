// SPDX-License-Identifier: Apache-2.0
// Unary and streaming calls over a TensorSource.
#include "rendezvous/recv_tensor/recv_tensor_service.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "coord/wire/bytes.h"
#include "coord/wire/raw_service.h"
#include "proto/ferry_tensor_stream.pb.h"
#include "proto/tf_worker.pb.h"
#include "rendezvous/recv_tensor/call_auth.h"
#include "rendezvous/recv_tensor/derived.h"
#include "rendezvous/value.h"

namespace ferry {
namespace {

void Count(const RecvTensorServiceOptions& options, const absl::Status& status) {
  if (options.refused != nullptr && absl::IsUnauthenticated(status)) {
    options.refused->fetch_add(1, std::memory_order_relaxed);
  }
}

// For the log: the node that a key's value is sent to, or -1.
int64_t PeerIn(absl::string_view key) {
  const absl::StatusOr<RendezvousKey> parsed = RendezvousKey::Parse(key);
  return parsed.ok() ? parsed->dst().task.task : -1;
}

// Common part of both kinds of call.
class Asked final {
 public:
  Asked(TensorSource& source, grpc::CallbackServerContext* context,
        const RecvTensorServiceOptions& options)
      : options(options), source_(source), context_(context) {}
  // Runs when the call is over and none of its callbacks can run any more.
  ~Asked() {
    if (transfer_ == nullptr) return;
    absl::Status status;
    if (is_cancelled_.load()) {
      status = absl::UnavailableError(absl::StrCat(ToString(transfer_->key.dst().task),
                                                   " has died or given up before it had all of ",
                                                   transfer_->bytes, " bytes"));
    }
    FERRY_LOG_DEBUG(kTransport, "response over: peer={} step={} request={} {} key={}", PeerIn(key_),
                    step_id_, request_id_, status, absl::CEscape(key_));
    source_.EndTransfer(transfer_, status);
  }

  // Parses a request of either form, which share field names, and requests its value.
  template <typename Message>
  void Ask(grpc::ByteBuffer bytes, ServedCallback done) {
    Message message;
    if (!coord::ParseMessage(bytes, message)) {
      return std::move(done)(
          absl::InvalidArgumentError("the request for a tensor is no such message"), {});
    }
    step_id_ = message.step_id();
    key_ = message.rendezvous_key();
    const TensorCall call = {step_id_, message.request_id(), key_};
    request_id_ = call.request_id;
    FERRY_LOG_DEBUG(kTransport, "request received: peer={} step={} request={} key={}", PeerIn(key_),
                    step_id_, request_id_, absl::CEscape(key_));
    absl::Status status = CheckCallChecksum(context_->client_metadata(), call);
    if (status.ok()) status = CheckAuthTag(context_->client_metadata(), options.auth, call);
    Count(options, status);
    if (!status.ok()) return std::move(done)(std::move(status), {});
    source_.Recv({.step_id = call.step_id, .key = call.key, .request_id = call.request_id},
                 &cancellation_, std::move(done));
  }
  void OnCancel() {
    is_cancelled_.store(true);
    cancellation_.Cancel();
  }

  // The value is about to be sent.
  void Begin(const ServedValue& value) {
    transfer_ = source_.BeginTransfer(step_id_, key_, value);
    FERRY_LOG_DEBUG(kTransport,
                    "response sent: peer={} step={} request={} path=grpc bytes={} key={}",
                    PeerIn(key_), step_id_, request_id_, value.is_dead ? 0 : value.tensor.bytes(),
                    absl::CEscape(key_));
    if (!options.checksum && !FindMetadata(context_->client_metadata(), kChecksumMetadata)) return;
    context_->AddTrailingMetadata(kChecksumMetadata, ChecksumText(value));
  }
  // The value cannot be sent: reports the error to both sides.
  void FailSend(ServedValue value, const absl::Status& why) {
    // A retry would be as large.
    value.require_ack = false;
    source_.EndTransfer(source_.BeginTransfer(step_id_, key_, value), why);
  }
  // True if the rest is no longer needed.
  bool is_step_over() const {
    return transfer_ != nullptr && transfer_->is_step_over.load(std::memory_order_relaxed);
  }
  int64_t step_id() const { return step_id_; }

  const RecvTensorServiceOptions& options;

 private:
  TensorSource& source_;
  grpc::CallbackServerContext* const context_;
  int64_t step_id_ = 0;
  int64_t request_id_ = 0;
  std::string key_;
  CancellationToken cancellation_;
  std::atomic<bool> is_cancelled_{false};
  TensorSource::TransferPtr transfer_;
};

// Owned by gRPC, which deletes it when the call is over and none of its callbacks can run any more.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(TensorSource& source, grpc::CallbackServerContext* context,
            const RecvTensorServiceOptions& options, grpc::ByteBuffer* response)
      : asked_(source, context, options), response_(response) {}

  void Start(const grpc::ByteBuffer& request) {
    asked_.Ask<tensorflow::RecvTensorRequest>(
        request, [this](absl::Status status, ServedValue value) { End(std::move(status), value); });
  }

 private:
  void End(absl::Status status, const ServedValue& value) {
    if (status.ok()) {
      absl::StatusOr<grpc::ByteBuffer> encoded =
          EncodeRecvTensorResponse(value, asked_.options.max_unary_bytes);
      if (encoded.ok()) {
        asked_.Begin(value);
        response_->Swap(&*encoded);
      } else {
        status = encoded.status();
        asked_.FailSend(value, status);
      }
    }
    Finish(ToGrpcAnswer(status));
  }
  void OnCancel() override { asked_.OnCancel(); }
  void OnDone() override { delete this; }

  Asked asked_;
  grpc::ByteBuffer* const response_;
};

// As above. After each Start... and Finish another thread may own it.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  StreamCall(TensorSource& source, grpc::CallbackServerContext* context,
             const RecvTensorServiceOptions& options)
      : asked_(source, context, options) {}

  void Start(const grpc::ByteBuffer& request) {
    asked_.Ask<v1::TensorStreamRequest>(request, [this](absl::Status status, ServedValue value) {
      if (!status.ok()) return Finish(ToGrpcAnswer(status));
      asked_.Begin(value);
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
  // Not called for the last write.
  void OnWriteDone(bool ok) override {
    if (ok && asked_.is_step_over()) {
      return Finish(ToGrpcAnswer(MakeDerived(absl::AbortedError(
          absl::StrCat("step ", asked_.step_id(), " is over, in the middle of a tensor")))));
    }
    if (ok) return WriteNext();
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
  }
  void OnCancel() override { asked_.OnCancel(); }
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
               auto* call = new UnaryCall(source, context, options_, response);
               call->Start(*request);
               return call;
             });
    AddUnary(kMarkRecvFinishedPath, [this, &source](grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
      tensorflow::MarkRecvFinishedRequest message;
      grpc::ByteBuffer bytes = *request;
      absl::Status status;
      if (coord::ParseMessage(bytes, message)) {
        status = CheckAuthTag(context->client_metadata(), options_.auth, message.request_id());
        Count(options_, status);
      } else {
        status = absl::InvalidArgumentError("the request is no MarkRecvFinishedRequest");
      }
      if (status.ok()) {
        FERRY_LOG_DEBUG(kTransport, "acknowledgement received: from={} request={}", context->peer(),
                        message.request_id());
        source.MarkRecvFinished(message.request_id());
        *response = coord::SerializeMessage(tensorflow::MarkRecvFinishedResponse());
      }
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(ToGrpcAnswer(status));
      return reactor;
    });
    if (!options_.has_streams) return;
    AddServerStream(kTensorStreamPath, [this, &source](grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) {
      auto* call = new StreamCall(source, context, options_);
      call->Start(*request);
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
