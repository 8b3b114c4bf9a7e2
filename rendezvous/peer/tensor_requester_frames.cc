// SPDX-License-Identifier: Apache-2.0
// Incoming transfer descriptors, refusals and announcements.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "rendezvous/peer/frame_checksum.h"
#include "rendezvous/peer/tensor_requester.h"
#include "rendezvous/serialized_tensor.h"
#include "tensor/check_values.h"
#include "tensor/checksum.h"
#include "transport/control/descriptors.h"

namespace ferry {
namespace {

absl::Status WrongDestination(const TensorHeader& header, const Tensor& destination) {
  return absl::InvalidArgumentError(
      absl::StrCat("what came is ", DataTypeName(header.dtype), ToString(header.shape),
                   ", and the receiver's buffer is for ", ToString(destination)));
}

absl::Status NotRequired(absl::string_view taken, absl::string_view required,
                         const PeerId& producer, const PeerId& self) {
  return absl::FailedPreconditionError(
      absl::StrCat(Describe(producer), " sends by ", taken, ", and ", required,
                   " is the required transport here, on ", Describe(self)));
}

// Value of Received::path; literals only, since that is a view.
absl::string_view StagedPath(absl::string_view path) {
  if (path == "inline") return "inline, staged";
  if (path == "shm") return "shm, staged";
  return path == "tcp" ? "tcp, staged" : path;
}

absl::Status SecondAnswer(uint64_t id) {
  return absl::InvalidArgumentError(
      absl::StrCat("an answer to request ", id, ", which waits for none"));
}

}  // namespace

absl::Status TensorRequester::OnFrame(uint16_t type, absl::string_view body,
                                      absl::Span<UniqueFd> descriptors) {
  switch (static_cast<PeerMessageType>(type)) {
    case PeerMessageType::kReadyToSend:
      return OnReadyToSend(body, descriptors);
    case PeerMessageType::kError:
      return OnError(body);
    case PeerMessageType::kSenderControl: {
      FERRY_ASSIGN_OR_RETURN(const TransportControlMessage announcement,
                             DecodeTransportControl(body));
      if (announcement.transport > receivers_.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "an announcement of transport ", announcement.transport, ", which is not known here"));
      }
      TransportReceiver& receiver = *receivers_[announcement.transport - 1];
      if (!receiver.is_fd_optional()) FERRY_RETURN_IF_ERROR(CheckDescriptors(descriptors));
      return receiver.OnControlMessage(announcement.body, descriptors);
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a producer sends no ", PeerMessageName(type)));
  }
}

void TensorRequester::ForgetTries(uint64_t id, size_t but) {
  for (size_t i = 0; i < receivers_.size(); ++i) {
    if (i + 1 != but && (*exchange_.transports)[i]->is_retryable()) receivers_[i]->Cancel(id);
  }
}

absl::Status TensorRequester::OnError(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(ErrorMessage refusal, DecodeError(body));
  // It closes the whole control channel.
  if (refusal.id == 0) {
    return absl::Status(refusal.status.code(),
                        absl::StrCat(Describe(producer_.peer),
                                     " closes the connection: ", refusal.status.message()));
  }
  ForgetTries(refusal.id, 0);
  {
    SpinLockHolder lock(&mu_);
    if (cancelled_.erase(refusal.id) > 0) return absl::OkStatus();
    const auto found = waiting_.find(refusal.id);
    // A pending fetch writes to its destination, which does not belong to the caller again before
    // the transport was told to stop.
    if (found == waiting_.end() || found->second->is_taking) return SecondAnswer(refusal.id);
  }
  Complete(refusal.id, std::move(refusal.status), {});
  return absl::OkStatus();
}

absl::Status TensorRequester::OnReadyToSend(absl::string_view body,
                                            absl::Span<UniqueFd> descriptors) {
  FERRY_RETURN_IF_ERROR(CheckDescriptors(descriptors));
  FERRY_ASSIGN_OR_RETURN(const ReadyToSendMessage rts, DecodeReadyToSend(body));
  const uint64_t id = rts.id;
  if (rts.transport > receivers_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a transfer descriptor of transport ",
                                                   rts.transport, ", which this version has not"));
  }
  if (rts.transport == 0) return OnInlineReadyToSend(rts);
  TransportReceiver* const receiver = receivers_[rts.transport - 1].get();
  bool is_wanted = false;
  bool is_again = false;
  TensorHeader header = rts.header;
  Tensor destination;
  int64_t step_id = 0;
  std::string logged_key;
  {
    SpinLockHolder lock(&mu_);
    const auto found = waiting_.find(id);
    is_wanted = found != waiting_.end();
    if (is_wanted ? found->second->is_taking : cancelled_.erase(id) == 0) return SecondAnswer(id);
    if (is_wanted) {
      found->second->is_taking = true;
      is_again = found->second->is_again;
      found->second->transport = rts.transport;
      header.place = found->second->place;
      step_id = found->second->step_id;
      logged_key = found->second->logged_key;
      if (!rts.is_serialized) destination = found->second->destination.tensor();
    }
  }
  FERRY_LOG_DEBUG(kTransport, "fetch started: peer={} step={} request={} path={} bytes={} key={}",
                  producer_.peer.node_id, step_id, id,
                  (*exchange_.transports)[rts.transport - 1]->name(), header.bytes, logged_key);
  if (is_again) ForgetTries(id, rts.transport);
  const bool fits = !destination.is_valid() ||
                    (destination.dtype() == header.dtype && destination.bytes() == header.bytes);
  // The producer selects by its own policy; ours may be stricter.
  const std::string& required = exchange_.policy.require;
  const bool is_allowed =
      required.empty() || (*exchange_.transports)[rts.transport - 1]->name() == required;
  if (!is_wanted || !is_allowed || !fits) {
    absl::Status why;
    if (is_wanted) {
      why = is_allowed ? WrongDestination(header, destination)
                       : NotRequired((*exchange_.transports)[rts.transport - 1]->name(), required,
                                     producer_.peer, exchange_.self.peer);
    }
    receiver->Discard(id, header, rts.body, descriptors);
    // Before the caller is notified, and possibly exits.
    if (is_wanted) {
      Reject(id, nullptr, why);
      Complete(id, std::move(why), {});
    } else {
      Done(id);
    }
    return absl::OkStatus();
  }
  ReadyToSendMessage kept = rts;
  kept.body = {};
  // A transport that cannot deliver there delivers to host memory, or to that of the key's GPU.
  const bool is_for_gpus = (*exchange_.transports)[rts.transport - 1]->moves_gpu_memory();
  const TensorLocation brought = is_for_gpus ? header.place : TensorLocation();
  if (destination.is_valid() && !(destination.place() == brought)) destination = Tensor();
  absl::string_view path = receiver->PathOf(header, rts.body, destination);
  if (path.empty()) path = (*exchange_.transports)[rts.transport - 1]->name();
  // Large ones only: reading the clock takes a tenth of a small one's time.
  const bool is_telling = header.bytes >= PathCostEstimator::kMinBandwidthSampleBytes &&
                          (*exchange_.transports)[rts.transport - 1]->is_measurable();
  const absl::Time start = is_telling ? exchange_.clock->Now() : absl::InfiniteFuture();
  receiver->Fetch(
      id, header, rts.body, descriptors, destination,
      [self = shared_from_this(), kept, id, start, path](absl::StatusOr<Tensor> tensor,
                                                         TransportReceiver::FetchInfo info) {
        const bool release_later = info.release_later;
        Transport& transport = *(*self->exchange_.transports)[kept.transport - 1];
        if (absl::IsAborted(tensor.status()) && transport.is_retryable() &&
            self->AskAgain(id, tensor.status())) {
          return;
        }
        if (tensor.ok() && start != absl::InfiniteFuture()) {
          const absl::Time now = self->exchange_.clock->Now();
          self->costs_->SawBytes(kept.transport - 1u, kept.header.bytes, now - start, now);
        }
        // Before the producer is notified, and possibly exits: the value is here.
        const WaitingPtr waiting = self->TakeOut(id);
        // Log before the producer logs the acknowledgement.
        if (waiting != nullptr && tensor.ok()) {
          self->LogEnd(*waiting, kept.is_staged ? StagedPath(path) : path, absl::OkStatus());
          self->ExpectAcknowledgement(*waiting);
        }
        // From here on the view itself reports its release.
        const bool was_brought = tensor.ok();
        // A view that is rejected is released after that.
        const Tensor held = was_brought && kept.may_be_rejected() ? *tensor : Tensor();
        if (was_brought && !release_later && !kept.may_be_rejected()) self->Done(id);
        Received received;
        bool ends_connection = false;
        absl::Status status =
            self->Unpack(kept, std::move(tensor), info.has_checked_values, path,
                         waiting == nullptr ? "" : waiting->name, received, ends_connection);
        // Send it even if the channel closes next: the producer would take a view for delivered.
        if (!status.ok() && waiting != nullptr) {
          self->Reject(id, nullptr, status);
        } else if (!release_later && (!was_brought || kept.may_be_rejected())) {
          self->Done(id);
        }
        if (ends_connection) self->Close(status);
        if (waiting == nullptr) return;
        if (!status.ok()) self->LogEnd(*waiting, path, status);
        RecvCallback asker = std::move(waiting->done);
        waiting->destination = {};
        std::move(asker)(std::move(status), std::move(received));
      });
  if ((*exchange_.transports)[rts.transport - 1]->is_retryable()) {
    // A concurrent Cancel found no fetch to cancel.
    bool is_still_wanted = false;
    {
      SpinLockHolder lock(&mu_);
      is_still_wanted = waiting_.contains(id);
    }
    if (!is_still_wanted) receiver->Cancel(id);
  }
  return absl::OkStatus();
}

absl::Status TensorRequester::OnInlineReadyToSend(const ReadyToSendMessage& rts) {
  const TensorHeader& header = rts.header;
  // Over a control channel within a host no tensor of that size is inline.
  const bool is_allowed = !exchange_.policy.forbids_tcp() || rts.body.size() <= kInlineUnasked;
  WaitingPtr waiting;
  RecvCallback done;
  Destination wanted;
  Tensor destination;
  bool fits = true;
  {
    SpinLockHolder lock(&mu_);
    const auto found = waiting_.find(rts.id);
    if (found == waiting_.end() ? cancelled_.erase(rts.id) == 0 : found->second->is_taking) {
      return SecondAnswer(rts.id);
    }
    if (found == waiting_.end()) return absl::OkStatus();
    waiting = std::move(found->second);
    waiting_.erase(found);
    done = std::move(waiting->done);
    wanted = std::move(waiting->destination);
    if (wanted.is_valid() && !rts.is_serialized && !rts.is_dead) {
      destination = *wanted;
      fits = destination.dtype() == header.dtype && destination.bytes() == header.bytes;
      if (fits && !destination.is_on_host()) destination = Tensor();
      // Under the lock: a caller that cancels may reuse its buffer once it has had the lock.
      if (is_allowed && fits && destination.is_valid() && header.bytes > 0) {
        std::memcpy(destination.mutable_data(), rts.body.data(), header.bytes);
      }
    }
  }
  if (waiting->is_again) ForgetTries(rts.id, 0);
  FERRY_LOG_DEBUG(
      kTransport, "fetch started: peer={} step={} request={} path=inline bytes={} key={}",
      producer_.peer.node_id, waiting->step_id, rts.id, header.bytes, waiting->logged_key);
  if (!fits || !is_allowed) {
    absl::Status why = is_allowed ? WrongDestination(header, destination)
                                  : NotRequired("tcp", exchange_.policy.require, producer_.peer,
                                                exchange_.self.peer);
    Reject(rts.id, waiting.get(), why);
    LogEnd(*waiting, "", why);
    std::move(done)(std::move(why), {});
    return absl::OkStatus();
  }
  if (rts.is_dead) {
    Received received;
    received.is_dead = true;
    received.path = "inline";
    LogEnd(*waiting, "inline, dead", absl::OkStatus());
    std::move(done)(absl::OkStatus(), std::move(received));
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> tensor = std::move(destination);
  if (!tensor->is_valid()) {
    tensor = Tensor::Allocate(header.dtype, header.shape);
    if (tensor.ok() && header.bytes > 0) {
      std::memcpy(tensor->mutable_data(), rts.body.data(), header.bytes);
    }
  }
  Received received;
  bool ends_connection = false;
  absl::Status status = Unpack(rts, std::move(tensor), /*has_checked_values=*/false, "inline",
                               waiting->name, received, ends_connection);
  if (!status.ok()) Reject(rts.id, waiting.get(), status);
  if (ends_connection) Close(status);
  LogEnd(*waiting, received.path, status);
  std::move(done)(std::move(status), std::move(received));
  return absl::OkStatus();
}

absl::Status TensorRequester::Unpack(const ReadyToSendMessage& rts, absl::StatusOr<Tensor> tensor,
                                     bool has_checked_values, absl::string_view path,
                                     absl::string_view name, Received& received,
                                     bool& ends_connection) {
  if (!tensor.ok()) {
    // The peer violates the protocol or has lost its data connections: it cannot be used any more.
    absl::Status why = Named(tensor.status());
    ends_connection = absl::IsInvalidArgument(why) || absl::IsUnavailable(why);
    return why;
  }
  if (!tensor->is_on_host() && (rts.has_checksum || rts.is_serialized)) {
    // Correct producers stage data that the host has to read.
    ends_connection = true;
    return Named(absl::InvalidArgumentError(
        "a checksum, or a serialised tensor, of elements in a GPU's memory"));
  }
  if (rts.has_checksum) {
    const uint64_t sum = Checksum(tensor->data(), tensor->bytes());
    if (sum != rts.checksum) {
      return absl::DataLossError(
          absl::StrCat(tensor->bytes(), " bytes from ", Describe(producer_.peer), " by ", path,
                       " have checksum ", absl::Hex(sum), ", and were sent with ",
                       absl::Hex(rts.checksum), name.empty() ? "" : absl::StrCat(" (", name, ")"),
                       ". ", WhatToDoAboutDamage(producer_.peer)));
    }
  }
  if (rts.is_serialized) {
    FERRY_ASSIGN_OR_RETURN(tensor, DeserializeTensor(*tensor));
  } else if (absl::Status values = has_checked_values ? absl::OkStatus() : CheckValues(*tensor);
             !values.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor that ", Describe(producer_.peer), " sent by ", path,
        " is invalid: ", values.message(), name.empty() ? "" : absl::StrCat(" (", name, ")")));
  }
  received.tensor = *std::move(tensor);
  received.path = rts.is_staged ? StagedPath(path) : path;
  return absl::OkStatus();
}

}  // namespace ferry
