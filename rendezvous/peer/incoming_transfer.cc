// SPDX-License-Identifier: Apache-2.0
// The states of a tensor that is requested, and the steps between them.
#include "rendezvous/peer/incoming_transfer.h"

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "rendezvous/peer/frame_checksum.h"
#include "rendezvous/peer/staged_path.h"
#include "rendezvous/peer/tensor_requester.h"
#include "rendezvous/serialized_tensor.h"
#include "tensor/check_values.h"
#include "tensor/checksum.h"

namespace ferry {
namespace {

constexpr uint32_t Bit(IncomingState state) { return 1u << static_cast<uint32_t>(state); }

// The states that may follow each state, in the order of the enum.
constexpr uint32_t kSuccessors[] = {
    /* kQueued */ Bit(IncomingState::kRequested) | Bit(IncomingState::kFinished),
    // To kFinished by an inline tensor, by an ERROR, or by the end of the channel.
    /* kRequested */ Bit(IncomingState::kFetching) | Bit(IncomingState::kCancelled) |
        Bit(IncomingState::kFinished),
    // A fetch that is cancelled has had its answer.
    /* kFetching */ Bit(IncomingState::kRetrying) | Bit(IncomingState::kFinished),
    /* kRetrying */ Bit(IncomingState::kFetching) | Bit(IncomingState::kCancelled) |
        Bit(IncomingState::kFinished),
    /* kCancelled */ Bit(IncomingState::kFinished),
    /* kFinished */ 0,
};

}  // namespace

absl::string_view IncomingStateName(IncomingState state) {
  static constexpr absl::string_view kNames[] = {"queued",   "requested", "fetching",
                                                 "retrying", "cancelled", "finished"};
  return kNames[static_cast<size_t>(state)];
}

bool IsLegal(IncomingState from, IncomingState to) {
  return (kSuccessors[static_cast<size_t>(from)] & Bit(to)) != 0;
}

IncomingTransfer::IncomingTransfer(std::weak_ptr<TensorRequester> requester, int64_t step_id,
                                   const RendezvousKey& key, const RecvArgs& args,
                                   RecvCallback done, bool needs_name)
    : requester_(std::move(requester)),
      peer_(key.src().task.task),
      step_id_(step_id),
      done_(std::move(done)),
      location_(LocationOf(key.dst())),
      destination_(args.destination) {
  if (needs_name) name_ = absl::StrCat("step ", step_id, ", ", absl::CEscape(key.text()));
  if (needs_name || args.destination.is_valid()) AllowRejection(key);
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) {
    logged_key_ = absl::CEscape(key.text());
  }
}

void IncomingTransfer::Cancel() {
  if (const auto requester = requester_.lock()) requester->Cancel(*this);
}

std::string IncomingTransfer::Phase() const {
  const auto requester = requester_.lock();
  return requester == nullptr ? "ending" : requester->PhaseOf(*this);
}

bool IncomingTransfer::Advance(IncomingState to) {
  const IncomingState from = state();
  if (!IsLegal(from, to)) [[unlikely]] {
    FERRY_LOG_ERROR(kTransport,
                    "illegal state of a receive: peer={} step={} request={} from={} to={}", peer_,
                    step_id_, id_, IncomingStateName(from), IncomingStateName(to));
    return false;
  }
  state_.store(to, std::memory_order_release);
  FERRY_LOG_DEBUG(kTransport, "receive state: peer={} step={} request={} from={} to={}", peer_,
                  step_id_, id_, IncomingStateName(from), IncomingStateName(to));
  return true;
}

void IncomingTransfer::Queue(const RendezvousKey& key) { queued_key_ = key.text(); }

void IncomingTransfer::Fetch(const std::shared_ptr<TensorRequester>& requester,
                             const IncomingTransferPtr& self, const ReadyToSendMessage& rts,
                             absl::Span<UniqueFd> descriptors, Tensor destination) {
  const Transport& transport = requester->transport(rts.transport);
  TransportReceiver& receiver = requester->receiver(rts.transport);
  TensorHeader header = rts.header;
  header.location = location_;
  // A transport that cannot deliver there delivers to host memory, or to that of the key's GPU.
  const TensorLocation brought =
      transport.capabilities().moves_gpu_memory ? location_ : TensorLocation();
  if (destination.is_valid() && !(destination.location() == brought)) destination = Tensor();
  Fetching fetching = {.rts = rts};
  fetching.rts.body = {};
  // A peer may say so of anything.
  fetching.rts.is_staged &= !transport.capabilities().moves_gpu_memory;
  fetching.path = receiver.PathOf(header, rts.body, destination);
  if (fetching.path.empty()) fetching.path = transport.name();
  // Large ones only: reading the clock takes a tenth of a small one's time.
  const bool is_sampled = header.bytes >= PathCostEstimator::kMinBandwidthSampleBytes &&
                          transport.capabilities().measurable;
  fetching.start = is_sampled ? requester->context().clock->Now() : absl::InfiniteFuture();
  receiver.Fetch(id_, header, rts.body, descriptors, destination,
                 [requester, transfer = self, fetching = std::move(fetching)](
                     absl::StatusOr<Tensor> tensor, TransportReceiver::FetchInfo info) {
                   transfer->OnFetched(*requester, fetching, std::move(tensor), info);
                 });
  // A concurrent Cancel found no fetch to cancel.
  if (!transport.capabilities().retryable) return;
  const IncomingState now = state();
  if (now == IncomingState::kCancelled || now == IncomingState::kFinished) receiver.Cancel(id_);
}

void IncomingTransfer::OnFetched(TensorRequester& requester, const Fetching& fetching,
                                 absl::StatusOr<Tensor> tensor, TransportReceiver::FetchInfo info) {
  const ReadyToSendMessage& rts = fetching.rts;
  if (absl::IsAborted(tensor.status()) &&
      requester.transport(rts.transport).capabilities().retryable &&
      requester.Retry(*this, tensor.status())) {
    return;
  }
  if (tensor.ok() && fetching.start != absl::InfiniteFuture()) {
    const absl::Time now = requester.context().clock->Now();
    requester.costs()->RecordBandwidth(rts.transport - 1u, rts.header.bytes, now - fetching.start,
                                       now);
  }
  const absl::string_view path = info.path.empty() ? fetching.path : info.path;
  // Before the producer is notified, and possibly exits: the value is here.
  const bool is_wanted = requester.Finish(*this);
  // Log before the producer logs the acknowledgement.
  if (is_wanted && tensor.ok()) {
    LogEnd(requester, rts.is_staged ? StagedPath(path) : path, absl::OkStatus());
    requester.ExpectAcknowledgement(*this);
  }
  // From here on the view itself reports its release.
  const bool was_brought = tensor.ok();
  // A view that is rejected is released after that.
  const Tensor held = was_brought && rts.may_be_rejected() ? *tensor : Tensor();
  if (was_brought && !info.release_later && !rts.may_be_rejected()) requester.Acknowledge(id_);
  Received received;
  bool ends_connection = false;
  absl::Status status = Unpack(requester, rts, std::move(tensor), info.has_checked_values, path,
                               is_wanted ? name_ : absl::string_view(), received, ends_connection);
  // Send it even if the channel closes next: the producer would take a view for delivered.
  if (!status.ok() && is_wanted) {
    requester.Reject(id_, nullptr, status);
  } else if (!info.release_later && (!was_brought || rts.may_be_rejected())) {
    requester.Acknowledge(id_);
  }
  if (ends_connection) requester.Close(status);
  if (!is_wanted) return;
  if (!status.ok()) LogEnd(requester, path, status);
  Complete(std::move(status), std::move(received));
}

void IncomingTransfer::ReceiveInline(TensorRequester& requester, const ReadyToSendMessage& rts,
                                     Tensor tensor, const absl::Status& error) {
  const TensorHeader& header = rts.header;
  FERRY_LOG_DEBUG(kTransport,
                  "fetch started: peer={} step={} request={} path=inline bytes={} key={}",
                  requester.producer().peer.node_id, step_id_, id_, header.bytes, logged_key_);
  if (!error.ok()) {
    requester.Reject(id_, this, error);
    LogEnd(requester, "", error);
    return Complete(error, {});
  }
  Received received;
  if (rts.is_dead) {
    received.is_dead = true;
    received.path = "inline";
    LogEnd(requester, "inline, dead", absl::OkStatus());
    return Complete(absl::OkStatus(), std::move(received));
  }
  absl::StatusOr<Tensor> brought = std::move(tensor);
  if (!brought->is_valid()) {
    brought = Tensor::Allocate(header.dtype, header.shape);
    if (brought.ok() && header.bytes > 0) {
      std::memcpy(brought->mutable_data(), rts.body.data(), header.bytes);
    }
  }
  bool ends_connection = false;
  absl::Status status = Unpack(requester, rts, std::move(brought), /*has_checked_values=*/false,
                               "inline", name_, received, ends_connection);
  if (!status.ok()) requester.Reject(id_, this, status);
  if (ends_connection) requester.Close(status);
  LogEnd(requester, received.path, status);
  Complete(std::move(status), std::move(received));
}

void IncomingTransfer::Complete(absl::Status status, Received received) {
  // The caller may keep the handle.
  RecvCallback done = std::move(done_);
  destination_ = {};
  std::move(done)(std::move(status), std::move(received));
}

void IncomingTransfer::LogEnd(const TensorRequester& requester, absl::string_view path,
                              const absl::Status& status) const {
  if (status.ok()) {
    FERRY_LOG_DEBUG(kTransport, "fetch done: peer={} step={} request={} path={} key={}",
                    requester.producer().peer.node_id, step_id_, id_, path, logged_key_);
  } else {
    FERRY_LOG_DEBUG(kTransport, "fetch failed: peer={} step={} request={} reason={} key={}",
                    requester.producer().peer.node_id, step_id_, id_, status, logged_key_);
  }
}

absl::Status IncomingTransfer::Unpack(const TensorRequester& requester,
                                      const ReadyToSendMessage& rts, absl::StatusOr<Tensor> tensor,
                                      bool has_checked_values, absl::string_view path,
                                      absl::string_view name, Received& received,
                                      bool& ends_connection) {
  if (!tensor.ok()) {
    // The peer violates the protocol or has lost its data connections: it cannot be used any more.
    absl::Status why = requester.Named(tensor.status());
    ends_connection = absl::IsInvalidArgument(why) || absl::IsUnavailable(why);
    return why;
  }
  if (!tensor->is_on_host() && (rts.has_checksum || rts.is_serialized)) {
    // Correct producers stage data that the host has to read.
    ends_connection = true;
    return requester.Named(absl::InvalidArgumentError(
        "a checksum, or a serialised tensor, of elements in a GPU's memory"));
  }
  if (rts.has_checksum) {
    const uint64_t sum = Checksum(tensor->data(), tensor->bytes());
    if (sum != rts.checksum) {
      return absl::DataLossError(
          absl::StrCat(tensor->bytes(), " bytes from ", Describe(requester.producer().peer), " by ",
                       path, " have checksum ", absl::Hex(sum), ", and were sent with ",
                       absl::Hex(rts.checksum), name.empty() ? "" : absl::StrCat(" (", name, ")"),
                       ". ", WhatToDoAboutDamage(requester.producer().peer)));
    }
  }
  if (rts.is_serialized) {
    FERRY_ASSIGN_OR_RETURN(tensor, DeserializeTensor(*tensor));
  } else if (absl::Status values = has_checked_values ? absl::OkStatus() : CheckValues(*tensor);
             !values.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor that ", Describe(requester.producer().peer), " sent by ", path,
        " is invalid: ", values.message(), name.empty() ? "" : absl::StrCat(" (", name, ")")));
  }
  received.tensor = *std::move(tensor);
  received.path = rts.is_staged ? StagedPath(path) : path;
  return absl::OkStatus();
}

}  // namespace ferry
