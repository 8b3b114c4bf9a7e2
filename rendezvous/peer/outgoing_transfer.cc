// SPDX-License-Identifier: Apache-2.0
// The states of a tensor that is sent, and the steps between them.
#include "rendezvous/peer/outgoing_transfer.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "rendezvous/peer/tensor_responder.h"
#include "rendezvous/serialized_tensor.h"
#include "tensor/check_values.h"
#include "tensor/checksum.h"

namespace ferry {
namespace {

// Attempts for a tensor in GPU memory before it is staged through host memory, and before it fails.
constexpr int kMaxGpuTries = 4;
constexpr int kMaxTries = 8;

constexpr uint32_t Bit(OutgoingState state) { return 1u << static_cast<uint32_t>(state); }

// The states that may follow each state, in the order of the enum.
constexpr uint32_t kSuccessors[] = {
    // At once to kExposed if a transport sends it without a copy or a wait.
    /* kRequested */ Bit(OutgoingState::kMatched) | Bit(OutgoingState::kExposed) |
        Bit(OutgoingState::kFinished),
    /* kMatched */ Bit(OutgoingState::kStaging) | Bit(OutgoingState::kExposing) |
        Bit(OutgoingState::kFinished),
    /* kStaging */ Bit(OutgoingState::kMatched) | Bit(OutgoingState::kFinished),
    // Back to kMatched if the transport cannot send it.
    /* kExposing */ Bit(OutgoingState::kExposed) | Bit(OutgoingState::kMatched) |
        Bit(OutgoingState::kFinished),
    // Back to kMatched if the transport could not send it at once, or if the consumer requests
    // another attempt.
    /* kExposed */ Bit(OutgoingState::kLent) | Bit(OutgoingState::kMatched) |
        Bit(OutgoingState::kFinished),
    /* kLent */ Bit(OutgoingState::kFinished),
    /* kFinished */ 0,
};

}  // namespace

absl::string_view OutgoingStateName(OutgoingState state) {
  static constexpr absl::string_view kNames[] = {"requested", "matched", "staging", "exposing",
                                                 "exposed",   "lent",    "finished"};
  return kNames[static_cast<size_t>(state)];
}

bool IsLegal(OutgoingState from, OutgoingState to) {
  return (kSuccessors[static_cast<size_t>(from)] & Bit(to)) != 0;
}

OutgoingTransfer::OutgoingTransfer(std::shared_ptr<TensorResponder> responder,
                                   const RequestMessage& message, const RendezvousKey& key)
    : responder_(std::move(responder)),
      id_(message.id),
      step_id_(message.step_id),
      key_(key),
      location_(LocationOf(key.dst())),
      may_reject_(message.may_reject) {}

bool OutgoingTransfer::Advance(OutgoingState to) {
  const OutgoingState from = state_.load(std::memory_order_relaxed);
  if (!IsLegal(from, to)) [[unlikely]] {
    FERRY_LOG_ERROR(kTransport, "illegal state of a send: peer={} step={} request={} from={} to={}",
                    key_.dst().task.task, step_id_, id_, OutgoingStateName(from),
                    OutgoingStateName(to));
    return false;
  }
  state_.store(to, std::memory_order_release);
  FERRY_LOG_DEBUG(kTransport, "send state: peer={} step={} request={} from={} to={}",
                  key_.dst().task.task, step_id_, id_, OutgoingStateName(from),
                  OutgoingStateName(to));
  return true;
}

void OutgoingTransfer::Start(const OutgoingTransferPtr& self) {
  RecvArgs args;
  args.cancellation = &cancellation_;
  args.operation = &operation_;
  responder_->context().manager->RecvLocalAsync(
      step_id_, key_, std::move(args), [transfer = self](absl::Status status, Received received) {
        transfer->OnValue(transfer, status, std::move(received));
      });
}

void OutgoingTransfer::OnValue(const OutgoingTransferPtr& self, const absl::Status& status,
                               Received received) {
  const std::shared_ptr<TensorResponder> responder = std::move(responder_);
  const bool has_bytes = status.ok() && !received.is_dead && IsFixedSize(received.tensor.dtype());
  SelectedPath path;
  // First, since in the most frequent case the transfer changes its state only once.
  if (has_bytes) path = responder->paths().Select(received.tensor, location_);
  const bool is_matched =
      path.is_zero_copy ? responder->MatchExposed(*this, path.transport, received.tensor.bytes())
                        : responder->Match(*this);
  if (!is_matched) {
    // Cancelled by the consumer, or by the closing of the control channel.
    if (status.ok()) RecordSendFailure(*responder, responder->closed());
    return;
  }
  if (path.is_zero_copy) return SendZeroCopy(responder, self, std::move(received.tensor), path);
  if (has_bytes) return FollowPath(responder, self, std::move(received.tensor), path);
  if (!status.ok()) {
    responder->Refuse(id_, status);
    return Finish(*responder);
  }
  if (received.is_dead) {
    ReadyToSendMessage rts;
    rts.id = id_;
    rts.is_dead = true;
    SendRts(*responder, rts, {});
    return Finish(*responder);
  }
  absl::StatusOr<Tensor> serialized = SerializeTensor(received.tensor);
  if (!serialized.ok()) return FailSend(*responder, serialized.status());
  is_serialized_ = true;
  SelectPath(responder, self, *std::move(serialized));
}

void OutgoingTransfer::SelectPath(const std::shared_ptr<TensorResponder>& responder,
                                  const OutgoingTransferPtr& self, Tensor tensor) {
  const SelectedPath path = responder->paths().Select(tensor, location_);
  FollowPath(responder, self, std::move(tensor), path);
}

void OutgoingTransfer::FollowPath(const std::shared_ptr<TensorResponder>& responder,
                                  const OutgoingTransferPtr& self, Tensor tensor,
                                  const SelectedPath& path) {
  switch (path.kind) {
    case SelectedPath::Kind::kInline:
      return SendInline(*responder, tensor);
    case SelectedPath::Kind::kStage:
      tensor_ = std::move(tensor);
      return Stage(responder, self);
    case SelectedPath::Kind::kTransport:
      tensor_ = std::move(tensor);
      return Expose(responder, self, path);
    case SelectedPath::Kind::kNone:
      return FailSend(*responder, path.error);
  }
}

void OutgoingTransfer::SendZeroCopy(const std::shared_ptr<TensorResponder>& responder,
                                    const OutgoingTransferPtr& self, Tensor tensor,
                                    const SelectedPath& path) {
  const Transport& transport = *(*responder->context().transports)[path.transport];
  ReadyToSendMessage rts;
  rts.id = id_;
  rts.transport = NumberOfTransport(path.transport);
  rts.header = {tensor.dtype(), tensor.shape(), tensor.bytes()};
  rts.has_checksum = responder->sends_checksums();
  if (rts.has_checksum) rts.checksum = Checksum(tensor.data(), tensor.bytes());
  FERRY_LOG_DEBUG(kTransport, "descriptor sent: peer={} step={} request={} path={} bytes={} key={}",
                  responder->consumer().peer.node_id, step_id_, id_, transport.name(),
                  rts.header.bytes, absl::CEscape(key_.text()));
  const ReadyToSendHead head(rts);
  if (responder->sender(path.transport)
          .TryExposeAndSend(id_, tensor,
                            {.channel = &responder->channel(),
                             .type = static_cast<uint16_t>(PeerMessageType::kReadyToSend),
                             .head = head.view()})) {
    return OnRtsSent(*responder, rts);
  }
  // If the channel has closed, that has ended this transfer, and recorded its loss.
  if (responder->Unexpose(*this)) FollowPath(responder, self, std::move(tensor), path);
}

void OutgoingTransfer::SendInline(TensorResponder& responder, const Tensor& tensor) {
  if (absl::Status status = CheckValues(tensor); !status.ok()) {
    return FailSend(responder, responder.Named(status));
  }
  ReadyToSendMessage rts = MakeRts(tensor);
  if (responder.sends_checksums()) {
    rts.has_checksum = true;
    rts.checksum = Checksum(tensor.data(), tensor.bytes());
  }
  rts.body = {static_cast<const char*>(tensor.data()), tensor.bytes()};
  SendRts(responder, rts, {});
  Finish(responder);
}

void OutgoingTransfer::Stage(const std::shared_ptr<TensorResponder>& responder,
                             const OutgoingTransferPtr& self) {
  const TransferContext& context = responder->context();
  if (context.gpus == nullptr) {
    return FailSend(*responder, absl::FailedPreconditionError(absl::StrCat(
                                    Describe(context.self.peer),
                                    " uses no GPUs, and cannot send what is in their memory")));
  }
  FERRY_LOG_DEBUG(kTransport, "copy to host memory started: peer={} step={} request={} key={}",
                  responder->consumer().peer.node_id, step_id_, id_, absl::CEscape(key_.text()));
  if (absl::Status closed = responder->List(self, OutgoingState::kStaging, 0, tensor_.bytes());
      !closed.ok()) {
    RecordSendFailure(*responder, closed);
    return Finish(*responder);
  }
  MoveRequest move;
  move.tensor = tensor_;
  move.what = absl::StrCat("a tensor for ", Describe(responder->consumer().peer));
  responder_ = responder;
  context.gpus->Move(std::move(move), [transfer = self](absl::StatusOr<Tensor> tensor) {
    transfer->OnStaged(transfer, std::move(tensor));
  });
}

void OutgoingTransfer::OnStaged(const OutgoingTransferPtr& self, absl::StatusOr<Tensor> tensor) {
  const std::shared_ptr<TensorResponder> responder = std::move(responder_);
  if (!tensor.ok()) return FailSend(*responder, responder->Named(tensor.status()));
  tensor_ = Tensor();
  is_staged_ = true;
  Advance(OutgoingState::kMatched);
  SelectPath(responder, self, *std::move(tensor));
}

void OutgoingTransfer::Expose(const std::shared_ptr<TensorResponder>& responder,
                              const OutgoingTransferPtr& self, const SelectedPath& path) {
  const TransferContext& context = responder->context();
  const Transport& transport = *(*context.transports)[path.transport];
  const Tensor tensor = tensor_;
  if (responder->sends_checksums()) checksum_ = Checksum(tensor.data(), tensor.bytes());
  // A view is kept for as long as its receiver likes, so its duration is no sample.
  start_ = absl::InfiniteFuture();
  if (transport.capabilities().measurable &&
      responder->paths().costs().WantsSample(path.transport, tensor.bytes(), path.now)) {
    start_ = context.clock->Now();
  }
  // But the preceding copy into the arena is.
  copy_start_ = absl::InfiniteFuture();
  if (tensor.is_on_host() && !path.is_in_arena && transport.capabilities().outlives_producer &&
      tensor.bytes() >= PathCostEstimator::kMinBandwidthSampleBytes) {
    copy_start_ = context.clock->Now();
  }
  if (absl::Status closed =
          responder->List(self, OutgoingState::kExposing, path.transport, tensor.bytes());
      !closed.ok()) {
    RecordSendFailure(*responder, closed);
    return Finish(*responder);
  }
  TransportSender& sender = responder->sender(path.transport);
  responder_ = responder;
  sender.Expose(
      id_, tensor, location_, [transfer = self](absl::StatusOr<TransferDescriptor> descriptor) {
        const std::shared_ptr<TensorResponder> responder = std::move(transfer->responder_);
        transfer->OnExposed(responder, transfer, std::move(descriptor));
      });
}

void OutgoingTransfer::OnExposed(const std::shared_ptr<TensorResponder>& responder,
                                 const OutgoingTransferPtr& self,
                                 absl::StatusOr<TransferDescriptor> descriptor) {
  if (!descriptor.ok()) return OnExposeFailed(responder, self, descriptor.status());
  const size_t number = listing_.transport;
  const Transport& transport = *(*responder->context().transports)[number];
  if (copy_start_ != absl::InfiniteFuture()) {
    const absl::Time copied = responder->context().clock->Now();
    responder->paths().costs().RecordBandwidth(number, tensor_.bytes(), copied - copy_start_,
                                               copied);
  }
  ReadyToSendMessage rts = MakeRts(tensor_);
  rts.has_checksum = responder->sends_checksums();
  rts.checksum = checksum_;
  rts.transport = NumberOfTransport(number);
  rts.body = descriptor->body;
  // The transport keeps what it needs.
  if (!transport.capabilities().retryable) tensor_ = Tensor();
  // Before the consumer can answer. From here on the loop may end the transfer, or start it again.
  Advance(OutgoingState::kExposed);
  SendRts(*responder, rts, descriptor->descriptors);
}

void OutgoingTransfer::OnExposeFailed(const std::shared_ptr<TensorResponder>& responder,
                                      const OutgoingTransferPtr& self, const absl::Status& why) {
  // Found out by trying; the transport's Cost fails from now on.
  const bool has_another_path =
      absl::IsFailedPrecondition(why) && !std::exchange(has_changed_path_, true);
  // No room on the direct path; there may be on the path through host memory.
  const bool goes_by_host = absl::IsResourceExhausted(why) && !tensor_.is_on_host() &&
                            responder->context().policy.require.empty();
  const size_t number = listing_.transport;
  if (!has_another_path && !goes_by_host) {
    FailSend(*responder, responder->Named(why));
    return responder->sender(number).Release(id_);
  }
  responder->Unlist(*this);
  Advance(OutgoingState::kMatched);
  responder->sender(number).Release(id_);
  if (has_another_path) {
    responder->paths().OnTransportFailed();
    return SelectPath(responder, self, std::move(tensor_));
  }
  Stage(responder, self);
}

void OutgoingTransfer::Retry(const std::shared_ptr<TensorResponder>& responder,
                             const OutgoingTransferPtr& self, const absl::Status& why) {
  const TransferContext& context = responder->context();
  const size_t number = listing_.transport;
  responder->sender(number).Release(id_);
  ++failed_tries_;
  if (failed_tries_ >= kMaxTries) {
    return FailSend(*responder, absl::AbortedError(absl::StrCat(
                                    Describe(context.self.peer), " has tried ", failed_tries_,
                                    " times to send it; at last: ", why.message())));
  }
  const bool is_required = context.policy.require == (*context.transports)[number]->name();
  if (failed_tries_ >= kMaxGpuTries && !is_required) return Stage(responder, self);
  SelectPath(responder, self, std::move(tensor_));
}

void OutgoingTransfer::Release(TensorResponder& responder, bool was_received) {
  const size_t number = listing_.transport;
  if (was_received) {
    FERRY_LOG_DEBUG(kTransport, "acknowledgement received: peer={} step={} request={} key={}",
                    responder.consumer().peer.node_id, step_id_, id_, absl::CEscape(key_.text()));
  }
  responder.sender(number).Release(id_);
  if (was_received && start_ != absl::InfiniteFuture()) {
    const absl::Time now = responder.context().clock->Now();
    responder.paths().costs().RecordTransfer(number, listing_.bytes, now - start_, now);
  }
}

ReadyToSendMessage OutgoingTransfer::MakeRts(const Tensor& tensor) const {
  ReadyToSendMessage rts;
  rts.id = id_;
  rts.is_serialized = is_serialized_;
  rts.is_staged = is_staged_;
  rts.header = {tensor.dtype(), tensor.shape(), tensor.bytes()};
  return rts;
}

void OutgoingTransfer::SendRts(TensorResponder& responder, const ReadyToSendMessage& rts,
                               absl::Span<const int> descriptors) {
  const TransportList& transports = *responder.context().transports;
  FERRY_LOG_DEBUG(
      kTransport, "descriptor sent: peer={} step={} request={} path={} bytes={} key={}",
      responder.consumer().peer.node_id, step_id_, id_,
      rts.transport == 0 ? absl::string_view("inline") : transports[rts.transport - 1u]->name(),
      rts.header.bytes, absl::CEscape(key_.text()));
  ControlChannel& channel = responder.channel();
  const absl::Status status = SendReadyToSend(channel, rts, descriptors);
  // Close the channel, or the consumer would wait for a message that never arrives.
  if (!status.ok()) return channel.Close(status);
  OnRtsSent(responder, rts);
}

void OutgoingTransfer::OnRtsSent(TensorResponder& responder, const ReadyToSendMessage& rts) {
  const TransportList& transports = *responder.context().transports;
  const bool is_view =
      rts.transport > 0 && transports[rts.transport - 1u]->capabilities().outlives_producer;
  const bool has_all = rts.transport == 0 && !rts.is_dead;
  // A view may be rejected after the step has stopped waiting for it.
  if (is_view || (has_all && (may_reject_ || rts.may_be_rejected()))) {
    responder.TrackSentRts(*this, is_view);
  }
}

void OutgoingTransfer::FailSend(TensorResponder& responder, const absl::Status& why) {
  responder.context().manager->RecordSendFailure(step_id_, key_, why);
  responder.Refuse(id_, why);
  Finish(responder);
}

void OutgoingTransfer::RecordSendFailure(const TensorResponder& responder,
                                         const absl::Status& why) const {
  // A consumer that leaves in an orderly way loses nothing.
  if (why.ok() || absl::IsCancelled(why)) return;
  responder.context().manager->RecordSendFailure(step_id_, key_, why);
}

void OutgoingTransfer::Finish(TensorResponder& responder) {
  const OutgoingState from = state();
  // One that was matched the first time is not listed.
  if (from != OutgoingState::kMatched || is_staged_) responder.Unlist(*this);
  Advance(OutgoingState::kFinished);
}

}  // namespace ferry
