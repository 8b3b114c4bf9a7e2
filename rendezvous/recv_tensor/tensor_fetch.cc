// SPDX-License-Identifier: Apache-2.0
// A fetch's attempts: a stream, or a unary call, and retries.
#include "rendezvous/recv_tensor/tensor_fetch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include <grpcpp/support/client_callback.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/bounded_text.h"
#include "base/logging.h"
#include "base/text.h"
#include "coord/wire/bytes.h"
#include "proto/ferry_tensor_stream.pb.h"
#include "proto/tf_worker.pb.h"
#include "rendezvous/recv_tensor/call_auth.h"
#include "rendezvous/recv_tensor/derived.h"
#include "rendezvous/recv_tensor/tensor_channel.h"
#include "tensor/check_values.h"

namespace ferry {
namespace {

using PeerPtr = std::shared_ptr<TensorPeer>;
using FetchPtr = std::shared_ptr<TensorFetch>;
using ContextPtr = std::shared_ptr<grpc::ClientContext>;

// Both delete themselves when their call is over.
class StreamAttempt final : public grpc::ClientReadReactor<grpc::ByteBuffer> {
 public:
  StreamAttempt(FetchPtr fetch, PeerPtr peer, ContextPtr context)
      : fetch_(std::move(fetch)),
        peer_(std::move(peer)),
        context_(std::move(context)),
        request_(fetch_->StreamRequest()),
        reader_(fetch_->target(), fetch_->core().options().max_tensor_bytes) {}

  void Start() {
    grpc::internal::ClientCallbackReaderFactory<grpc::ByteBuffer>::Create(
        peer_->channel.get(), peer_->stream, context_.get(), &request_, this);
    StartRead(&frame_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    outcome_.has_begun = true;
    // Keep reading after an error, so that the call completes.
    if (outcome_.status.ok()) {
      outcome_.status = reader_.Read(frame_);
      if (!outcome_.status.ok()) context_->TryCancel();
    }
    frame_.Clear();
    StartRead(&frame_);
  }
  void OnDone(const grpc::Status& status) override {
    outcome_.is_kept = reader_.has_header() && reader_.require_ack();
    if (outcome_.status.ok()) outcome_.status = FromGrpcAnswer(status);
    if (outcome_.status.ok()) {
      absl::StatusOr<ServedValue> value = reader_.Finish();
      if (value.ok()) {
        outcome_.status = fetch_->CheckAnswer(*context_, /*is_stream=*/true, *value);
        outcome_.value = *std::move(value);
      } else {
        outcome_.status = fetch_->OfSender(value.status());
      }
    }
    fetch_->OnAttemptDone(peer_, /*is_stream=*/true, std::move(outcome_));
    delete this;
  }

  const FetchPtr fetch_;
  const PeerPtr peer_;
  const ContextPtr context_;
  const grpc::ByteBuffer request_;
  FrameReader reader_;
  grpc::ByteBuffer frame_;
  FetchOutcome outcome_;
};

class UnaryAttempt final {
 public:
  static void Start(FetchPtr fetch, PeerPtr peer, ContextPtr context) {
    auto* self = new UnaryAttempt(std::move(fetch), std::move(peer), std::move(context));
    grpc::internal::CallbackUnaryCall(self->peer_->channel.get(), self->peer_->unary,
                                      self->context_.get(), &self->request_, &self->response_,
                                      [self](grpc::Status status) { self->OnDone(status); });
  }

 private:
  UnaryAttempt(FetchPtr fetch, PeerPtr peer, ContextPtr context)
      : fetch_(std::move(fetch)),
        peer_(std::move(peer)),
        context_(std::move(context)),
        request_(fetch_->UnaryRequest()) {}

  void OnDone(const grpc::Status& status) {
    FetchOutcome outcome;
    outcome.status = FromGrpcAnswer(status);
    if (outcome.status.ok()) {
      outcome.has_begun = true;
      absl::StatusOr<ServedValue> value = DecodeRecvTensorResponse(response_, fetch_->target());
      if (value.ok()) {
        outcome.is_kept = value->require_ack;
        outcome.status = fetch_->CheckAnswer(*context_, /*is_stream=*/false, *value);
        outcome.value = *std::move(value);
      } else {
        outcome.status = fetch_->OfSender(value.status());
      }
    }
    fetch_->OnAttemptDone(peer_, /*is_stream=*/false, std::move(outcome));
    delete this;
  }

  const FetchPtr fetch_;
  const PeerPtr peer_;
  const ContextPtr context_;
  const grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

// Tells the worker to release the value; if lost, it is released with the step.
void MarkFinished(const PeerPtr& peer, const std::string& token, int64_t request_id) {
  struct Call {
    PeerPtr peer;
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
  };
  auto* call = new Call{.peer = peer};
  tensorflow::MarkRecvFinishedRequest message;
  message.set_request_id(request_id);
  call->request = coord::SerializeMessage(message);
  if (!token.empty()) call->context.AddMetadata(kAuthTagMetadata, AuthTag(token, request_id));
  call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::internal::CallbackUnaryCall(peer->channel.get(), peer->mark_finished, &call->context,
                                    static_cast<const grpc::ByteBuffer*>(&call->request),
                                    &call->response, [call](grpc::Status) { delete call; });
}

}  // namespace

TensorFetch::TensorFetch(std::shared_ptr<TensorFetchCore> core, int64_t step_id, RendezvousKey key,
                         const RecvArgs& args, RecvCallback done)
    : core_(std::move(core)),
      step_id_(step_id),
      key_(std::move(key)),
      args_(args),
      request_id_(core_->NewRequestId()),
      done_(std::move(done)) {}

void TensorFetch::Start() { Attempt(); }

void TensorFetch::Cancel() {
  ContextPtr context;
  {
    absl::MutexLock lock(&mu_);
    if (is_cancelled_) return;
    is_cancelled_ = true;
    context = context_;
    if (alarm_ != nullptr) alarm_->Cancel();
  }
  if (context != nullptr) context->TryCancel();
  gate_.Close();
}

DecodeTarget TensorFetch::target() {
  // A destination in GPU memory is filled by the caller.
  const bool is_usable =
      args_.destination.is_valid() && CheckOnHost(*args_.destination, "receive into").ok();
  return {is_usable ? args_.destination.tensor() : Tensor(), core_->options().allocator,
          is_usable ? &gate_ : nullptr};
}

grpc::ByteBuffer TensorFetch::StreamRequest() const {
  v1::TensorStreamRequest message;
  message.set_step_id(step_id_);
  message.set_rendezvous_key(key_.text());
  message.set_request_id(request_id_);
  return coord::SerializeMessage(message);
}

grpc::ByteBuffer TensorFetch::UnaryRequest() const {
  tensorflow::RecvTensorRequest message;
  message.set_step_id(step_id_);
  message.set_rendezvous_key(key_.text());
  message.set_request_id(request_id_);
  return coord::SerializeMessage(message);
}

absl::Status TensorFetch::CheckAnswer(const grpc::ClientContext& context, bool is_stream,
                                      const ServedValue& value) const {
  // A server with streams supports checksums.
  absl::Status status = CheckValueChecksum(context.GetServerTrailingMetadata(), value,
                                           /*must_have=*/is_stream && core_->options().checksum);
  if (!status.ok()) return status;
  return OfSender(CheckValues(value.tensor));
}

absl::Status TensorFetch::OfSender(const absl::Status& status) const {
  // Other errors concern the connection, which Explain names.
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat("the value that ", ToString(key_.src().task),
                                                 " sent is invalid: ", status.message()));
}

void TensorFetch::Attempt() {
  absl::StatusOr<PeerPtr> peer = core_->PeerOf(key_.src().task);
  if (!peer.ok()) return Later(absl::ZeroDuration(), peer.status());
  auto context = std::make_shared<grpc::ClientContext>();
  if (args_.deadline != absl::InfiniteFuture()) {
    // The clock is not the system clock: only differences are meaningful.
    context->set_deadline(
        absl::ToChronoTime(absl::Now() + (args_.deadline - core_->clock().Now())));
  }
  if (core_->options().checksum) {
    context->AddMetadata(kChecksumMetadata, ChecksumText({step_id_, request_id_, key_.text()}));
  }
  if (const std::string& token = core_->options().token; !token.empty()) {
    context->AddMetadata(kAuthTagMetadata, AuthTag(token, {step_id_, request_id_, key_.text()}));
  }
  {
    absl::MutexLock lock(&mu_);
    context_ = context;
    // Fails at once, through the usual callback.
    if (is_cancelled_) context->TryCancel();
  }
  FERRY_LOG_DEBUG(kTransport, "request sent: peer={} step={} request={} address={} key={}",
                  key_.src().task.task, step_id_, request_id_, (*peer)->address,
                  absl::CEscape(key_.text()));
  if (core_->options().use_streams && (*peer)->has_streams.load(std::memory_order_relaxed)) {
    (new StreamAttempt(shared_from_this(), *std::move(peer), std::move(context)))->Start();
  } else {
    UnaryAttempt::Start(shared_from_this(), *std::move(peer), std::move(context));
  }
}

void TensorFetch::Later(absl::Duration delay, absl::Status status) {
  absl::MutexLock lock(&mu_);
  context_ = nullptr;
  if (is_cancelled_) delay = absl::ZeroDuration();
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(delay),
              [self = shared_from_this(), status = std::move(status)](bool) mutable {
                bool is_cancelled = false;
                std::unique_ptr<grpc::Alarm> alarm;
                {
                  absl::MutexLock held(&self->mu_);
                  is_cancelled = self->is_cancelled_;
                  alarm = std::move(self->alarm_);
                }
                if (is_cancelled) status = absl::CancelledError();
                if (!status.ok()) return self->End(std::move(status));
                self->Attempt();
              });
}

bool TensorFetch::MayRetry(const FetchOutcome& outcome) const {
  if (retries_ >= core_->options().max_retries) return false;
  return IsRefusedRetry(outcome.status) ||
         (absl::IsUnavailable(outcome.status) && (!outcome.has_begun || outcome.is_kept));
}

bool TensorFetch::IsRefusedRetry(const absl::Status& status) const {
  return !last_error_.ok() && absl::IsAborted(status) &&
         absl::StrContains(status.message(), "was received twice");
}

absl::Duration TensorFetch::NextBackoff() {
  const GrpcTensorFetcherOptions& options = core_->options();
  const absl::Duration backoff =
      std::min(options.max_backoff, options.initial_backoff * std::exp2(retries_));
  ++retries_;
  // Jitter of up to a quarter, so that clients of one failed worker do not all retry at once.
  return backoff * (1 - static_cast<double>(request_id_ & 0xff) / 1024);
}

void TensorFetch::OnAttemptDone(const PeerPtr& peer, bool is_stream, FetchOutcome outcome) {
  bool is_cancelled = false;
  {
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
    is_cancelled = is_cancelled_;
  }
  if (outcome.status.ok()) {
    FERRY_LOG_DEBUG(kTransport, "fetch done: peer={} step={} request={} path=grpc key={}",
                    key_.src().task.task, step_id_, request_id_, absl::CEscape(key_.text()));
    if (outcome.is_kept) {
      FERRY_LOG_DEBUG(kTransport, "acknowledgement sent: peer={} step={} request={} key={}",
                      key_.src().task.task, step_id_, request_id_, absl::CEscape(key_.text()));
      MarkFinished(peer, core_->options().token, request_id_);
    }
    return End(absl::OkStatus(), std::move(outcome.value));
  }
  if (is_cancelled) return End(std::move(outcome.status));
  if (is_stream && absl::IsUnimplemented(outcome.status) && !outcome.has_begun) {
    peer->has_streams.store(false, std::memory_order_relaxed);
    return Attempt();
  }
  if (MayRetry(outcome)) {
    const absl::Duration backoff = NextBackoff();
    if (core_->clock().Now() + backoff < args_.deadline) {
      FERRY_LOG_INFO(kTransport, "retrying the request: peer={} step={} request={} after {}: {}",
                     key_.src().task.task, step_id_, request_id_, ShortDuration(backoff),
                     outcome.status);
      if (!IsRefusedRetry(outcome.status)) last_error_ = Explain(outcome.status, peer->address);
      return Later(backoff, absl::OkStatus());
    }
  }
  if (IsRefusedRetry(outcome.status)) {
    return End(absl::UnavailableError(absl::StrCat(
        last_error_.message(), "; asked again, the worker says: ", outcome.status.message(),
        ". The value had been sent and is lost, since the worker keeps no responses, "
        "or it has not noticed that the first connection is gone")));
  }
  End(Explain(outcome.status, peer->address));
}

absl::Status TensorFetch::Explain(const absl::Status& status, const std::string& address) const {
  // The others are the worker's own errors.
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
      !absl::IsInternal(status) && !absl::IsDataLoss(status) && !absl::IsUnauthenticated(status)) {
    return status;
  }
  const absl::Status explained = ExplainUnreachable(status, address);
  const std::string text =
      explained == status ? std::string(status.message())
                          : absl::StrCat("node ", key_.src().task.task, " ", explained.message());
  return absl::Status(
      status.code(),
      absl::StrCat(text, "; step ", step_id_, " asked ", ToString(key_.src().task), " at ", address,
                   " for ", BoundedName(key_.text()),
                   retries_ == 0 ? "" : absl::StrCat(", ", retries_, " times again")));
}

void TensorFetch::End(absl::Status status, ServedValue value) {
  if (!status.ok()) {
    {
      absl::MutexLock lock(&mu_);
      if (is_cancelled_) {
        status = MakeDerived(absl::CancelledError("RecvFromRemoteAsync is cancelled."));
      }
    }
    FERRY_LOG_DEBUG(kTransport, "fetch failed: peer={} step={} request={} reason={} key={}",
                    key_.src().task.task, step_id_, request_id_, status,
                    absl::CEscape(key_.text()));
  }
  Received received;
  received.tensor = std::move(value.tensor);
  received.is_dead = value.is_dead;
  received.recv_args = args_;
  received.path = "grpc";
  std::move(done_)(std::move(status), std::move(received));
}

}  // namespace ferry
