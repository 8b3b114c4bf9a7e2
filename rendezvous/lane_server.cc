// SPDX-License-Identifier: Apache-2.0
// Requests in, tickets out; lane_server_transfers.cc: what has been offered.
#include "rendezvous/lane_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "base/recycled.h"
#include "base/status_macros.h"
#include "rendezvous/lane_seal.h"
#include "rendezvous/serialized_tensor.h"
#include "tensor/checksum.h"

namespace ferry {
namespace {

// Up to here the bytes go in the ticket: one message instead of a hand-over and its release. In
// shared memory a copy of this size costs what the release does.
constexpr size_t kInlineInArena = 2 * 1024;
constexpr size_t kInlineElsewhere = 16 * 1024;
// Another round of system calls on other threads costs more than this many bytes.
constexpr size_t kInlineOverTcp = 32 * 1024;
static_assert(kInlineOverTcp + 4096 <= kMaxLaneBody);
// Of a tensor in a GPU's memory, before it goes through the host's, and before it is given up.
constexpr int kMaxGpuTries = 4;
constexpr int kMaxTries = 8;

absl::Status WrongIncarnation(const RendezvousKey& key, uint64_t own) {
  return absl::AbortedError(absl::StrFormat(
      "RecvTensor expects a different device incarnation: %u vs. %u. Your worker job "
      "(\"%s\") was probably restarted. Check your worker job for the reason why it was restarted.",
      key.src_incarnation(), own, ToString(key.src().task)));
}

}  // namespace

LaneServer::LaneServer(const LaneExchange& exchange, Endpoint consumer, bool sends_seals,
                       std::string why_no_descriptors, std::shared_ptr<LanePing> ping)
    : exchange_(exchange),
      consumer_(std::move(consumer)),
      sends_seals_(sends_seals),
      why_no_descriptors_(std::move(why_no_descriptors)),
      ping_(std::move(ping)) {}

LaneServer::~LaneServer() = default;

void LaneServer::OnOpen(std::shared_ptr<Lane> lane) {
  lane_ = std::move(lane);
  for (const auto& transport : *exchange_.transports) {
    outlets_.push_back(transport->MakeOutlet(consumer_));
    const auto number = static_cast<uint8_t>(outlets_.size());
    outlets_.back()->SetAnnounce([weak = std::weak_ptr<Lane>(lane_), number](
                                     absl::string_view body, absl::Span<const int> descriptors) {
      const auto open = weak.lock();
      if (open == nullptr) return absl::UnavailableError("the lane has ended");
      absl::Status status = SendAnnouncement(*open, {number, body}, descriptors);
      // What the peer does not hear would leave it waiting.
      if (absl::IsResourceExhausted(status)) open->Close(status);
      return status;
    });
    const bool is_allowed =
        exchange_.policy.require.empty() || exchange_.policy.require == transport->name();
    if (!lane_->passes_descriptors() || !is_allowed) continue;
    outlets_.back()->SetHint([weak = std::weak_ptr<Lane>(lane_), number](
                                 absl::string_view body, absl::Span<const int> descriptors) {
      const auto open = weak.lock();
      if (open == nullptr) return absl::UnavailableError("the lane has ended");
      // On its way a descriptor keeps memory that has been given back to the machine: a peer that
      // reads nothing is not sent one after the other.
      if (!open->is_all_read()) return absl::UnavailableError("the peer has not read the last");
      return SendAnnouncement(*open, {number, body}, descriptors);
    });
  }
}

absl::Status LaneServer::OnFrame(uint16_t type, absl::string_view body,
                                 absl::Span<UniqueFd> descriptors) {
  switch (static_cast<LaneMessage>(type)) {
    case LaneMessage::kRequest:
      return OnRequest(body);
    case LaneMessage::kDone: {
      FERRY_ASSIGN_OR_RETURN(const uint64_t id, DecodeId(body));
      OnDone(id);
      return absl::OkStatus();
    }
    case LaneMessage::kCancel: {
      FERRY_ASSIGN_OR_RETURN(const uint64_t id, DecodeId(body));
      OnCancel(id);
      return absl::OkStatus();
    }
    case LaneMessage::kReply:
      return OnReply(body);
    case LaneMessage::kAgain:
      return OnAgain(body);
    case LaneMessage::kDeclined:
      return OnDeclined(body);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a consumer sends no ", LaneMessageName(type)));
  }
}

absl::Status LaneServer::OnReply(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const AnnouncementMessage reply, DecodeAnnouncement(body));
  if (reply.transport > outlets_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a reply to transport ", reply.transport, ", which is not known here"));
  }
  return outlets_[reply.transport - 1]->OnReply(reply.body);
}

absl::Status LaneServer::OnAgain(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const RefusalMessage again, DecodeRefusal(body));
  Offered offered;
  {
    SpinLockHolder lock(&mu_);
    const auto found = offered_.find(again.id);
    if (found == offered_.end() || found->second.again == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("AGAIN for ", again.id, ", which was not offered, or not for that"));
    }
    offered = std::move(found->second);
    offered_.erase(found);
  }
  outlets_[offered.transport]->Release(again.id);
  Outgoing outgoing = std::move(*offered.again);
  ++outgoing.failed_tries;
  if (outgoing.failed_tries >= kMaxTries) {
    Lose(*outgoing.request, absl::AbortedError(absl::StrCat(
                                Describe(exchange_.self.peer), " has tried ", outgoing.failed_tries,
                                " times to send it; at last: ", again.status.message())));
    return absl::OkStatus();
  }
  const bool is_required =
      exchange_.policy.require == (*exchange_.transports)[offered.transport]->name();
  if (outgoing.failed_tries >= kMaxGpuTries && !is_required) {
    Stage(std::move(outgoing));
  } else {
    Offer(std::move(outgoing));
  }
  return absl::OkStatus();
}

absl::Status LaneServer::OnRequest(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const RequestMessage message, DecodeRequest(body));
  const absl::StatusOr<const RendezvousKey*> parsed = keys_.Parse(message.key);
  if (!parsed.ok()) {
    Refuse(message.id, parsed.status());
    return absl::OkStatus();
  }
  const RendezvousKey& key = **parsed;
  if (key.src_incarnation() != exchange_.self.peer.incarnation) {
    Refuse(message.id, WrongIncarnation(key, exchange_.self.peer.incarnation));
    return absl::OkStatus();
  }
  RequestPtr request = std::allocate_shared<Request>(RecyclingAllocator<Request>(),
                                                     shared_from_this(), message, key);
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return absl::OkStatus();
    if (offered_.contains(message.id) || !waiting_.emplace(message.id, request).second) {
      return absl::InvalidArgumentError(absl::StrCat("request ", message.id, " for a second time"));
    }
  }
  RecvArgs args;
  args.cancellation = &request->cancellation;
  exchange_.manager->RecvLocalAsync(message.step_id, request->key, std::move(args),
                                    [request](absl::Status status, Received received) {
                                      const std::shared_ptr<LaneServer> server =
                                          std::move(request->server);
                                      server->OnValue(request, status, std::move(received));
                                    });
  return absl::OkStatus();
}

bool LaneServer::Take(const Request& request) {
  SpinLockHolder lock(&mu_);
  return waiting_.erase(request.id) > 0;
}

void LaneServer::OnValue(const RequestPtr& request, const absl::Status& status, Received received) {
  if (!Take(*request)) {
    // Called off by the consumer, or by the end of the lane.
    if (status.ok()) NoteLost(*request, closed());
    return;
  }
  if (!status.ok()) return Refuse(request->id, status);
  if (received.is_dead) {
    TicketMessage ticket;
    ticket.id = request->id;
    ticket.is_dead = true;
    return Send(*request, std::move(ticket), {});
  }
  Outgoing outgoing = {.request = request, .tensor = std::move(received.tensor)};
  if (!IsFixedSize(outgoing.tensor.dtype())) {
    absl::StatusOr<Tensor> serialized = SerializeTensor(outgoing.tensor);
    if (!serialized.ok()) return Lose(*request, serialized.status());
    outgoing.tensor = *std::move(serialized);
    outgoing.is_serialized = true;
  }
  Offer(std::move(outgoing));
}

size_t LaneServer::inline_bytes(bool is_in_arena) const {
  if (!lane_->passes_descriptors()) return kInlineOverTcp;
  return is_in_arena ? kInlineInArena : kInlineElsewhere;
}

void LaneServer::Stage(Outgoing outgoing) {
  if (exchange_.gpus == nullptr) {
    return Lose(*outgoing.request, absl::FailedPreconditionError(absl::StrCat(
                                       Describe(exchange_.self.peer),
                                       " uses no GPUs, and cannot send what is in their memory")));
  }
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
  if (!closed.ok()) return NoteLost(*outgoing.request, closed);
  exchange_.gpus->Move(std::move(move), [self = shared_from_this(), outgoing = std::move(outgoing)](
                                            absl::StatusOr<Tensor> tensor) mutable {
    if (!tensor.ok()) {
      self->Lose(*outgoing.request, self->Named(tensor.status()));
      return self->Unstage(outgoing.request->id);
    }
    outgoing.tensor = *std::move(tensor);
    outgoing.is_staged = true;
    self->Offer(std::move(outgoing));
  });
}

void LaneServer::Offer(Outgoing outgoing) {
  const uint64_t id = outgoing.request->id;
  const Tensor& tensor = outgoing.tensor;
  const bool is_on_host = tensor.is_on_host();
  // Of elements that the host can read.
  if (!is_on_host && (sends_seals_ || tensor.bytes() == 0)) return Stage(std::move(outgoing));
  TicketMessage ticket;
  ticket.id = id;
  ticket.is_serialized = outgoing.is_serialized;
  ticket.is_staged = outgoing.is_staged;
  ticket.header = {tensor.dtype(), tensor.shape(), tensor.bytes()};
  if (sends_seals_) {
    ticket.has_checksum = true;
    ticket.checksum = Checksum(tensor.data(), tensor.bytes());
  }
  const bool is_in_arena = tensor.buffer() != nullptr && tensor.buffer()->arena() != nullptr;
  if (is_on_host && tensor.bytes() <= inline_bytes(is_in_arena)) {
    ticket.body = {static_cast<const char*>(tensor.data()), tensor.bytes()};
    Send(*outgoing.request, std::move(ticket), {});
    if (outgoing.is_staged) Unstage(id);
    return;
  }
  const absl::Time now = exchange_.clock->CoarseNow();
  PathQuery query = Query(tensor.bytes(), is_in_arena, now);
  query.source_place = tensor.place();
  query.destination_place = PlaceOf(outgoing.request->key.dst());
  int chosen = PickPath(*exchange_.transports, query, exchange_.policy);
  if (chosen < 0) {
    const absl::StatusOr<PathChoice> choice =
        ChoosePath(*exchange_.transports, query, exchange_.policy);
    if (!choice.ok()) {
      Lose(*outgoing.request, choice.status());
      if (outgoing.is_staged) Unstage(id);
      return;
    }
    // What stood in its way has gone in between.
    chosen = static_cast<int>(choice->transport);
  }
  const Transport& transport = *(*exchange_.transports)[static_cast<size_t>(chosen)];
  const bool takes_it_there = transport.moves_gpu_memory();
  if (!is_on_host && !takes_it_there) return Stage(std::move(outgoing));
  Offered offered = {.transport = static_cast<size_t>(chosen),
                     .request = outgoing.request,
                     .tensor_bytes = tensor.bytes(),
                     .since = SteadyClock().CoarseNow()};
  SeenCosts& costs = *ping_->costs();
  ping_->Refresh(*lane_, now);
  if (transport.may_offer_again()) offered.again = std::make_shared<Outgoing>(outgoing);
  // A view is kept for as long as its receiver likes.
  if (transport.learns_from_transfers() &&
      costs.WantsSample(offered.transport, tensor.bytes(), now)) {
    offered.start = exchange_.clock->Now();
  }
  // But the copy that it takes before says something.
  absl::Time copy_start = absl::InfiniteFuture();
  if (is_on_host && !is_in_arena && transport.outlives_producer() &&
      tensor.bytes() >= SeenCosts::kTellingBytes) {
    copy_start = exchange_.clock->Now();
  }
  absl::Status closed;
  {
    SpinLockHolder lock(&mu_);
    closed = closed_;
    // In the place of its staging, if it has one: nobody sees it gone in between.
    if (closed.ok()) offered_.insert_or_assign(id, offered);
  }
  if (!closed.ok()) return NoteLost(*outgoing.request, closed);
  ticket.transport = static_cast<uint8_t>(chosen + 1);
  const Tensor offer_tensor = tensor;
  const MemoryPlace to = PlaceOf(outgoing.request->key.dst());
  outlets_[chosen]->Offer(
      id, offer_tensor, to,
      [self = shared_from_this(), ticket = std::move(ticket), outgoing = std::move(outgoing),
       copy_start](absl::StatusOr<TransportTicket> offer) mutable {
        if (offer.ok() && copy_start != absl::InfiniteFuture()) {
          const absl::Time copied = self->exchange_.clock->Now();
          self->ping_->costs()->SawBytes(ticket.transport - 1u, outgoing.tensor.bytes(),
                                         copied - copy_start, copied);
        }
        if (!offer.ok()) {
          // Only known since it was tried; its cost says so now.
          const bool has_another_way = absl::IsFailedPrecondition(offer.status()) &&
                                       !std::exchange(outgoing.is_second_choice, true);
          // There is no room for it on its way: there may be by way of the host.
          const bool goes_by_host = absl::IsResourceExhausted(offer.status()) &&
                                    !outgoing.tensor.is_on_host() &&
                                    self->exchange_.policy.require.empty();
          const absl::Status why = self->Named(offer.status());
          if (!has_another_way && !goes_by_host) self->Lose(*outgoing.request, why);
          self->OnDone(ticket.id, /*was_taken=*/false);
          if (has_another_way) return self->Offer(std::move(outgoing));
          if (goes_by_host) self->Stage(std::move(outgoing));
          return;
        }
        ticket.body = offer->body;
        self->Send(*outgoing.request, std::move(ticket), offer->descriptors);
      });
}

void LaneServer::Send(const Request& request, TicketMessage ticket,
                      absl::Span<const int> descriptors) {
  const absl::Status status = SendTicket(*lane_, ticket, descriptors);
  // A consumer that would wait for what never comes is better off without the lane.
  if (!status.ok()) return lane_->Close(status);
  // A view may be declined when nobody waits for its end any more.
  const bool is_view =
      ticket.transport > 0 && (*exchange_.transports)[ticket.transport - 1u]->outlives_producer();
  const bool has_all = ticket.transport == 0 && !ticket.is_dead;
  if (!is_view && !(has_all && (request.may_decline || ticket.may_be_declined()))) return;
  // Afterwards: a PING that others send in between is none for it.
  SpinLockHolder lock(&mu_);
  answers_.Count(request.step_id);
  if (!is_view) return;
  const auto found = offered_.find(ticket.id);
  if (found != offered_.end()) found->second.is_told = true;
}

void LaneServer::Refuse(uint64_t id, absl::Status status) {
  const absl::Status sent = SendRefusal(*lane_, {id, std::move(status)});
  if (!sent.ok()) lane_->Close(sent);
}

void LaneServer::OnDone(uint64_t id, bool was_taken) {
  Offered offered;
  {
    SpinLockHolder lock(&mu_);
    const auto found = offered_.find(id);
    // Of one that is being staged nobody can be done yet.
    if (found == offered_.end() || found->second.transport == kStaging) return;
    offered = found->second;
    offered_.erase(found);
  }
  outlets_[offered.transport]->Release(id);
  if (was_taken && offered.start != absl::InfiniteFuture()) {
    const absl::Time now = exchange_.clock->Now();
    ping_->costs()->SawTransfer(offered.transport, offered.tensor_bytes, now - offered.start, now);
  }
}

void LaneServer::OnCancel(uint64_t id) {
  RequestPtr request;
  {
    SpinLockHolder lock(&mu_);
    const auto found = waiting_.find(id);
    // Its ticket is under way, and the consumer knows what to do with that.
    if (found == waiting_.end()) return;
    request = std::move(found->second);
    waiting_.erase(found);
  }
  request->cancellation.Cancel();
  Refuse(id, absl::CancelledError("cancelled by the receiver"));
}

}  // namespace ferry
