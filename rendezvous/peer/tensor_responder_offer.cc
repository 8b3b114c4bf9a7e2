// SPDX-License-Identifier: Apache-2.0
// How a tensor is sent: inline in the transfer descriptor, or by which transport.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "rendezvous/peer/tensor_responder.h"
#include "tensor/check_values.h"
#include "tensor/checksum.h"

namespace ferry {
namespace {

// Up to this size the bytes are inline in the transfer descriptor: one message instead of a
// transfer and its release. In shared memory a copy of this size costs as much as the release.
constexpr size_t kInlineInArena = 2 * 1024;
constexpr size_t kInlineElsewhere = 16 * 1024;
// Over TCP, where data connections have threads of their own: waking one on each side, with another
// round of system calls, costs more than one more copy of this many bytes.
constexpr size_t kInlineOverTcp = 128 * 1024;
// Size of a transfer descriptor without its tensor, with a shape of many dimensions.
constexpr size_t kReadyToSendOverhead = 4096;
// As large as a transfer descriptor that refers to a transport.
constexpr size_t kInlineAlways = 512;
// Queued bytes on the control channel beyond which tensors take a transport, where waiting costs no
// copy.
constexpr size_t kInlineBacklog = 256 * 1024;

}  // namespace

bool TensorResponder::GoesInline(const Tensor& tensor, bool is_in_arena) const {
  if (!tensor.is_on_host()) return false;
  if (!channel_->passes_descriptors()) {
    return tensor.bytes() <=
           std::min(exchange_.policy.forbids_tcp() ? kInlineUnasked : kInlineOverTcp,
                    channel_->max_body() - kReadyToSendOverhead);
  }
  return tensor.bytes() <= (is_in_arena ? kInlineInArena : kInlineElsewhere);
}

void TensorResponder::SendInline(const Outgoing& outgoing, ReadyToSendMessage rts) {
  if (absl::Status status = CheckValues(outgoing.tensor); !status.ok()) {
    Lose(*outgoing.request, Named(status));
    if (outgoing.is_staged) Unstage(outgoing.request->id);
    return;
  }
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) {
    const Tensor& tensor = outgoing.tensor;
    PathQuery query =
        Query(tensor.bytes(), tensor.buffer() != nullptr && tensor.buffer()->arena() != nullptr,
              exchange_.clock->CoarseNow());
    query.destination_location = PlaceOf(outgoing.request->key.dst());
    LogPath(query, "inline");
  }
  rts.body = {static_cast<const char*>(outgoing.tensor.data()), outgoing.tensor.bytes()};
  Send(*outgoing.request, std::move(rts), {});
  if (outgoing.is_staged) Unstage(outgoing.request->id);
}

void TensorResponder::Stage(Outgoing outgoing) {
  if (exchange_.gpus == nullptr) {
    return Lose(*outgoing.request, absl::FailedPreconditionError(absl::StrCat(
                                       Describe(exchange_.self.peer),
                                       " uses no GPUs, and cannot send what is in their memory")));
  }
  FERRY_LOG_DEBUG(kTransport, "copy to host memory started: peer={} step={} request={} key={}",
                  consumer_.peer.node_id, outgoing.request->step_id, outgoing.request->id,
                  absl::CEscape(outgoing.request->key.text()));
  MoveRequest move;
  move.tensor = outgoing.tensor;
  move.what = absl::StrCat("a tensor for ", Describe(consumer_.peer));
  absl::Status closed;
  {
    SpinLockHolder lock(&mu_);
    closed = closed_;
    if (closed.ok()) {
      offered_.emplace(outgoing.request->id, Offered{.transport = kStaging,
                                                     .request = outgoing.request,
                                                     .tensor_bytes = outgoing.tensor.bytes(),
                                                     .since = SteadyClock().CoarseNow()});
    }
  }
  if (!closed.ok()) return RecordSendFailure(*outgoing.request, closed);
  exchange_.gpus->Move(std::move(move), [self = shared_from_this(), outgoing = std::move(outgoing)](
                                            absl::StatusOr<Tensor> tensor) mutable {
    if (!tensor.ok()) {
      self->Lose(*outgoing.request, self->Named(tensor.status()));
      return self->Unstage(outgoing.request->id);
    }
    outgoing.tensor = *std::move(tensor);
    outgoing.is_staged = true;
    self->Expose(std::move(outgoing));
  });
}

void TensorResponder::Expose(Outgoing outgoing) {
  const uint64_t id = outgoing.request->id;
  const Tensor& tensor = outgoing.tensor;
  const bool is_on_host = tensor.is_on_host();
  // The host must be able to read the elements.
  if (!is_on_host && (sends_checksums_ || tensor.bytes() == 0)) return Stage(std::move(outgoing));
  ReadyToSendMessage rts;
  rts.id = id;
  rts.is_serialized = outgoing.is_serialized;
  rts.is_staged = outgoing.is_staged;
  rts.header = {tensor.dtype(), tensor.shape(), tensor.bytes()};
  if (sends_checksums_) {
    rts.has_checksum = true;
    rts.checksum = Checksum(tensor.data(), tensor.bytes());
  }
  const bool is_in_arena = tensor.buffer() != nullptr && tensor.buffer()->arena() != nullptr;
  const bool goes_inline = GoesInline(tensor, is_in_arena);
  // For a peer that reads nothing now, copies of all tensors would be queued here, and the control
  // channel closed once they are too many.
  const bool is_held_up =
      goes_inline && tensor.bytes() > kInlineAlways && channel_->queued_bytes() > kInlineBacklog;
  if (goes_inline && !is_held_up) return SendInline(outgoing, std::move(rts));
  const absl::Time now = exchange_.clock->CoarseNow();
  PathQuery query = Query(tensor.bytes(), is_in_arena, now);
  query.source_location = tensor.place();
  query.destination_location = PlaceOf(outgoing.request->key.dst());
  std::optional<size_t> chosen =
      SelectPath(*exchange_.transports, query, exchange_.policy, /*explanation=*/nullptr);
  if (!chosen && is_held_up) return SendInline(outgoing, std::move(rts));
  if (!chosen) {
    PathExplanation explanation;
    chosen = SelectPath(*exchange_.transports, query, exchange_.policy, &explanation);
    // A path became available between the two selections.
    if (!chosen) {
      Lose(*outgoing.request, NoPathError(query, exchange_.policy, explanation));
      if (outgoing.is_staged) Unstage(id);
      return;
    }
  }
  const Transport& transport = *(*exchange_.transports)[*chosen];
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) LogPath(query, transport.name());
  const bool takes_it_there = transport.moves_gpu_memory();
  if (!is_on_host && !takes_it_there) return Stage(std::move(outgoing));
  Offered offered = {.transport = *chosen,
                     .request = outgoing.request,
                     .tensor_bytes = tensor.bytes(),
                     .since = SteadyClock().CoarseNow()};
  PathCostEstimator& costs = *ping_->costs();
  ping_->Refresh(*channel_, now);
  if (transport.is_retryable()) offered.again = std::make_shared<Outgoing>(outgoing);
  // A view is kept for as long as its receiver likes, so its duration is no sample.
  if (transport.is_measurable() && costs.WantsSample(offered.transport, tensor.bytes(), now)) {
    offered.start = exchange_.clock->Now();
  }
  // But the preceding copy into the arena is.
  absl::Time copy_start = absl::InfiniteFuture();
  if (is_on_host && !is_in_arena && transport.outlives_producer() &&
      tensor.bytes() >= PathCostEstimator::kMinBandwidthSampleBytes) {
    copy_start = exchange_.clock->Now();
  }
  absl::Status closed;
  {
    SpinLockHolder lock(&mu_);
    closed = closed_;
    // Replaces its staging entry, if any, so that the transfer is always listed.
    if (closed.ok()) offered_.insert_or_assign(id, offered);
  }
  if (!closed.ok()) return RecordSendFailure(*outgoing.request, closed);
  rts.transport = static_cast<uint8_t>(*chosen + 1);
  const Tensor offer_tensor = tensor;
  const TensorLocation to = PlaceOf(outgoing.request->key.dst());
  senders_[*chosen]->Expose(
      id, offer_tensor, to,
      [self = shared_from_this(), rts = std::move(rts), outgoing = std::move(outgoing),
       copy_start](absl::StatusOr<TransferDescriptor> offer) mutable {
        if (offer.ok() && copy_start != absl::InfiniteFuture()) {
          const absl::Time copied = self->exchange_.clock->Now();
          self->ping_->costs()->SawBytes(rts.transport - 1u, outgoing.tensor.bytes(),
                                         copied - copy_start, copied);
        }
        if (!offer.ok()) {
          // Found out by trying; the transport's Cost fails from now on.
          const bool has_another_way = absl::IsFailedPrecondition(offer.status()) &&
                                       !std::exchange(outgoing.is_second_choice, true);
          // No room on the direct path; there may be on the path through host memory.
          const bool goes_by_host = absl::IsResourceExhausted(offer.status()) &&
                                    !outgoing.tensor.is_on_host() &&
                                    self->exchange_.policy.require.empty();
          const absl::Status why = self->Named(offer.status());
          if (!has_another_way && !goes_by_host) self->Lose(*outgoing.request, why);
          self->OnDone(rts.id, /*was_taken=*/false);
          if (has_another_way) return self->Expose(std::move(outgoing));
          if (goes_by_host) self->Stage(std::move(outgoing));
          return;
        }
        rts.body = offer->body;
        self->Send(*outgoing.request, std::move(rts), offer->descriptors);
      });
}

}  // namespace ferry
