// SPDX-License-Identifier: Apache-2.0
// Which control channel with a peer is chosen, and what happens to the others.
#include "rendezvous/peer/peer_connection_pool.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {
namespace {

// Delay before the next attempt after a refusal.
constexpr absl::Duration kMinReconnectBackoff = absl::Milliseconds(5);
constexpr absl::Duration kMaxReconnectBackoff = absl::Milliseconds(500);

absl::Status AnotherIsChosen(const PeerId& peer) {
  return absl::CancelledError(
      absl::StrCat("there is another connection with ", Describe(peer), ", which is used"));
}

}  // namespace

PeerConnectionPool::PeerConnectionPool(const TransferContext& context) : context_(context) {}

PeerConnectionPool::~PeerConnectionPool() = default;

bool PeerConnectionPool::WinsSimultaneousOpen(const PeerId& peer) const {
  const PeerId& self = context_.self.peer;
  return std::tie(self.node_id, self.incarnation) < std::tie(peer.node_id, peer.incarnation);
}

absl::StatusOr<std::shared_ptr<TensorRequester>> PeerConnectionPool::Find(
    const PeerId& peer) const {
  SpinLockHolder lock(&mu_);
  if (!closed_.ok()) return closed_;
  const auto found = pairs_.find(peer);
  if (found == pairs_.end() || found->second->requester->has_ended()) return nullptr;
  return found->second->requester;
}

PeerConnectionPool::PeerStatePtr PeerConnectionPool::MakePeerState(const Endpoint& peer) {
  auto pair = std::make_shared<PeerState>(std::make_shared<TensorRequester>(context_, peer));
  pair->next_backoff = kMinReconnectBackoff;
  pairs_[peer.peer] = pair;
  return pair;
}

std::string PeerConnectionPool::UnixSocketUnavailableReason(const Endpoint& peer) const {
  const Endpoint& self = context_.self;
  const PathPolicy& policy = context_.policy;
  if (policy.required.moves_over_tcp) return absl::StrCat("only ", policy.require, " is allowed");
  if (self.boot_id.empty() || self.boot_id != peer.boot_id) return "they are on two machines";
  if (!context_.shared_memory_unavailable_reason.empty())
    return context_.shared_memory_unavailable_reason;
  if (!peer.channels.unix_name.empty()) return "";
  return absl::StrCat(Describe(peer.peer), " listens on no Unix socket");
}

PeerConnectionPool::ControlPath PeerConnectionPool::ControlPathTo(const Endpoint& peer) const {
  SpinLockHolder lock(&mu_);
  if (const auto found = pairs_.find(peer.peer); found != pairs_.end()) {
    return {found->second->requester->descriptors_unavailable_reason()};
  }
  const auto found = last_connections_.find(peer.peer.node_id);
  if (found != last_connections_.end() && found->second.incarnation == peer.peer.incarnation) {
    return found->second.path;
  }
  return {UnixSocketUnavailableReason(peer)};
}

absl::StatusOr<std::shared_ptr<TensorRequester>> PeerConnectionPool::Open(const Endpoint& peer) {
  std::string why_not = UnixSocketUnavailableReason(peer);
  PeerStatePtr pair;
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return closed_;
    const auto found = pairs_.find(peer.peer);
    if (found != pairs_.end() && !found->second->requester->has_ended())
      return found->second->requester;
    pair = MakePeerState(peer);
    pair->is_trying_unix = why_not.empty();
  }
  pair->requester->set_descriptors_unavailable_reason(std::move(why_not));
  Attempt(pair);
  return pair->requester;
}

void PeerConnectionPool::Attempt(const PeerStatePtr& pair) {
  auto connection = std::make_shared<PeerConnection>(context_, shared_from_this(), pair->peer(),
                                                     /*is_opener=*/true);
  bool use_unix = false;
  {
    SpinLockHolder lock(&mu_);
    if (pair->is_over || pair->chosen != nullptr) return;
    pair->opening = connection;
    use_unix = pair->is_trying_unix;
    connections_[connection.get()] = {.connection = connection, .pair = pair, .responder = {}};
  }
  FERRY_LOG_DEBUG(kTransport, "connecting to peer: peer={} by {}", pair->peer().node_id,
                  use_unix ? "its Unix socket" : "TCP");
  Connector::AttemptId attempt =
      connector_->Connect(pair->peer(), pair->requester->producer().channels, use_unix, connection);
  {
    SpinLockHolder lock(&mu_);
    if (pair->opening == connection) pair->attempt = std::exchange(attempt, 0);
  }
  // The attempt was abandoned meanwhile, unless it has ended by itself.
  connector_->CancelConnect(attempt, AnotherIsChosen(pair->peer()));
}

std::shared_ptr<ControlHandler> PeerConnectionPool::Accept(const PeerId& peer) {
  auto connection =
      std::make_shared<PeerConnection>(context_, shared_from_this(), peer, /*is_opener=*/false);
  SpinLockHolder lock(&mu_);
  if (!closed_.ok()) return nullptr;
  connections_[connection.get()] = {.connection = connection, .pair = nullptr, .responder = {}};
  return connection;
}

absl::Status PeerConnectionPool::OnConnectionOpen(
    const std::shared_ptr<PeerConnection>& connection) {
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return closed_;
    if (const PeerStatePtr& pair = connections_[connection.get()].pair; pair != nullptr) {
      if (pair->opening != connection) return AnotherIsChosen(connection->peer());
      // It sends HELLO next.
      if (WinsSimultaneousOpen(connection->peer())) {
        pair->chosen = std::move(pair->opening);
        pair->attempt = 0;
      }
    }
  }
  pending_hellos_.push_back({connector_->Now() + context_.connect_timeout, connection});
  ScheduleHelloTimeout();
  return absl::OkStatus();
}

void PeerConnectionPool::ScheduleHelloTimeout() {
  if (pending_hellos_.empty() || std::exchange(is_hello_timeout_scheduled_, true)) return;
  connector_->RunAfter(pending_hellos_.front().until - connector_->Now(),
                       [weak = weak_from_this()] {
                         if (const auto self = weak.lock()) self->CloseOnHelloTimeout();
                       });
}

void PeerConnectionPool::CloseOnHelloTimeout() {
  is_hello_timeout_scheduled_ = false;
  const absl::Time now = connector_->Now();
  std::vector<std::shared_ptr<PeerConnection>> late;
  while (!pending_hellos_.empty() && pending_hellos_.front().until <= now) {
    if (auto connection = pending_hellos_.front().connection.lock())
      late.push_back(std::move(connection));
    pending_hellos_.pop_front();
  }
  for (const auto& connection : late) {
    connection->Close(absl::DeadlineExceededError(
        absl::StrCat(Describe(connection->peer()), " is connected, and has not answered for ",
                     ShortDuration(context_.connect_timeout))));
  }
  ScheduleHelloTimeout();
}

void PeerConnectionPool::RemovePendingHello(const PeerConnection& connection) {
  std::erase_if(pending_hellos_, [&connection](const PendingHello& each) {
    return each.connection.lock().get() == &connection;
  });
}

absl::StatusOr<std::shared_ptr<TensorRequester>> PeerConnectionPool::OnPeerHello(
    const std::shared_ptr<PeerConnection>& connection, const Endpoint& peer) {
  RemovePendingHello(*connection);
  if (!connection->is_opener()) {
    std::shared_ptr<PeerConnection> replaced;
    FERRY_ASSIGN_OR_RETURN(const PeerStatePtr pair,
                           ChoosePeersConnection(connection, peer, replaced));
    if (replaced != nullptr) {
      replaced->Close(absl::UnavailableError(absl::StrCat(
          Describe(peer.peer), " has opened another connection: it has lost this one")));
    }
    return pair->requester;
  }
  SpinLockHolder lock(&mu_);
  if (!closed_.ok()) return closed_;
  const PeerStatePtr& pair = connections_[connection.get()].pair;
  if (pair->chosen == nullptr && pair->opening == connection) {
    pair->chosen = std::move(pair->opening);
    pair->attempt = 0;
  }
  if (pair->is_over || pair->chosen != connection) return AnotherIsChosen(connection->peer());
  return pair->requester;
}

absl::StatusOr<PeerConnectionPool::PeerStatePtr> PeerConnectionPool::ChoosePeersConnection(
    const std::shared_ptr<PeerConnection>& connection, const Endpoint& peer,
    std::shared_ptr<PeerConnection>& replaced) {
  PeerStatePtr pair;
  std::shared_ptr<PeerConnection> current;
  std::shared_ptr<PeerConnection> opening;
  Connector::AttemptId attempt = 0;
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return closed_;
    if (const auto found = pairs_.find(connection->peer());
        found != pairs_.end() && !found->second->requester->has_ended()) {
      pair = found->second;
      current = pair->chosen;
    }
    if (current == nullptr || !WinsSimultaneousOpen(connection->peer())) {
      replaced = std::exchange(current, nullptr);
      if (pair == nullptr || replaced != nullptr) pair = MakePeerState(peer);
      opening = std::move(pair->opening);
      attempt = std::exchange(pair->attempt, 0);
      pair->chosen = connection;
      connections_[connection.get()].pair = pair;
    }
  }
  if (current != nullptr) {
    // If the peer has closed it, this side finds out now.
    current->Probe();
    return absl::AlreadyExistsError(
        absl::StrCat("there is another connection with ", Describe(connection->peer())));
  }
  AbandonAttempt(opening, attempt, AnotherIsChosen(connection->peer()));
  return pair;
}

void PeerConnectionPool::OnResponderReady(PeerConnection& connection,
                                          const std::shared_ptr<TensorResponder>& responder) {
  SpinLockHolder lock(&mu_);
  connections_[&connection].responder = responder;
}

void PeerConnectionPool::OnConnectionClosed(PeerConnection& connection, const absl::Status& why) {
  RemovePendingHello(connection);
  PeerStatePtr pair;
  bool was_chosen = false;
  bool has_failed = false;
  {
    SpinLockHolder lock(&mu_);
    pair = connections_[&connection].pair;
    if (pair != nullptr && !pair->is_over) {
      was_chosen = pair->chosen.get() == &connection;
      has_failed = pair->opening.get() == &connection;
      if (was_chosen) pair->is_over = true;
      if (has_failed) {
        pair->opening = nullptr;
        pair->attempt = 0;
      }
    }
  }
  if (was_chosen) pair->requester->OnClosed(why);
  if (has_failed) OnAttemptFailed(pair, connection, why);
  SpinLockHolder lock(&mu_);
  if (was_chosen) Erase(pair);
  const auto entry = connections_.extract(&connection);
  std::erase_if(ended_, [](const auto& each) { return each.expired(); });
  if (!entry.mapped().responder.expired()) ended_.push_back(entry.mapped().responder);
}

void PeerConnectionPool::Erase(const PeerStatePtr& pair) {
  const auto found = pairs_.find(pair->peer());
  // It may have been replaced.
  if (found == pairs_.end() || found->second != pair) return;
  last_connections_[pair->peer().node_id] = {pair->peer().incarnation,
                                             {pair->requester->descriptors_unavailable_reason()}};
  pairs_.erase(found);
}

bool PeerConnectionPool::IsPeerOpening(const PeerId& peer) const {
  return std::any_of(connections_.begin(), connections_.end(), [&peer](const auto& each) {
    if (each.second.pair != nullptr) return false;
    const auto connection = each.second.connection.lock();
    return connection != nullptr && connection->peer() == peer;
  });
}

void PeerConnectionPool::OnAttemptFailed(const PeerStatePtr& pair, const PeerConnection& connection,
                                         const absl::Status& why) {
  const std::vector<std::string>& tcp = pair->requester->producer().channels.tcp;
  bool tries_tcp = false;
  bool tries_again = false;
  absl::Duration next_backoff;
  {
    SpinLockHolder lock(&mu_);
    if (closed_.ok() && pair->is_trying_unix && !connection.was_open()) {
      // Most likely another network namespace. The policy decides whether to try TCP.
      pair->is_trying_unix = false;
      tries_tcp = !context_.policy.required.needs_fd_channel && !tcp.empty();
    }
    if (closed_.ok() && (connection.was_refused() || IsPeerOpening(pair->peer())) &&
        pair->total_backoff < context_.connect_timeout) {
      tries_again = true;
      next_backoff = pair->next_backoff;
      pair->total_backoff += next_backoff;
      pair->next_backoff = std::min(2 * next_backoff, kMaxReconnectBackoff);
    }
  }
  if (tries_tcp || tries_again) {
    FERRY_LOG_INFO(kTransport, "reconnecting to the peer: peer={} by {} after {}: {}",
                   pair->peer().node_id, tries_tcp ? "TCP" : "the same way",
                   ShortDuration(tries_again ? next_backoff : absl::ZeroDuration()), why);
  }
  if (tries_tcp) {
    pair->requester->set_descriptors_unavailable_reason(std::string(why.message()));
    return Attempt(pair);
  }
  if (tries_again) {
    return connector_->RunAfter(next_backoff, [weak = weak_from_this(), pair] {
      if (const auto self = weak.lock()) self->Attempt(pair);
    });
  }
  FailPeer(pair, connection.was_refused() ? absl::UnavailableError(why.message()) : why);
}

void PeerConnectionPool::FailPeer(const PeerStatePtr& pair, const absl::Status& why) {
  std::shared_ptr<PeerConnection> opening;
  Connector::AttemptId attempt = 0;
  {
    SpinLockHolder lock(&mu_);
    if (pair->is_over) return;
    pair->is_over = true;
    opening = std::move(pair->opening);
    attempt = std::exchange(pair->attempt, 0);
  }
  FERRY_LOG_INFO(kTransport, "no connection to the peer: peer={}: {}", pair->peer().node_id, why);
  AbandonAttempt(opening, attempt, why);
  pair->requester->OnClosed(why);
  SpinLockHolder lock(&mu_);
  Erase(pair);
}

void PeerConnectionPool::AbandonAttempt(const std::shared_ptr<PeerConnection>& opening,
                                        Connector::AttemptId attempt, const absl::Status& why) {
  connector_->CancelConnect(attempt, why);
  if (opening != nullptr) opening->Close(why);
}

void PeerConnectionPool::ClosePeer(const PeerStatePtr& pair, const absl::Status& why) {
  std::shared_ptr<PeerConnection> chosen;
  {
    SpinLockHolder lock(&mu_);
    if (pair->is_over) return;
    chosen = pair->chosen;
  }
  if (chosen != nullptr) {
    pair->requester->Close(why);
    return chosen->Close(why);
  }
  connector_->RunAfter(absl::ZeroDuration(), [self = shared_from_this(), pair, why] {
    std::shared_ptr<PeerConnection> chosen_since;
    {
      SpinLockHolder lock(&self->mu_);
      chosen_since = pair->chosen;
    }
    if (chosen_since != nullptr) return chosen_since->Close(why);
    self->FailPeer(pair, why);
  });
}

void PeerConnectionPool::Forget(int32_t node_id, const absl::Status& why,
                                uint64_t alive_incarnation) {
  std::vector<PeerStatePtr> dead;
  {
    SpinLockHolder lock(&mu_);
    for (const auto& [peer, pair] : pairs_) {
      if (peer.node_id == node_id &&
          (alive_incarnation == 0 || peer.incarnation != alive_incarnation)) {
        dead.push_back(pair);
      }
    }
  }
  for (const PeerStatePtr& pair : dead) ClosePeer(pair, why);
}

void PeerConnectionPool::Close(const absl::Status& why) {
  std::vector<PeerStatePtr> pairs;
  std::vector<std::shared_ptr<PeerConnection>> connections;
  {
    SpinLockHolder lock(&mu_);
    if (closed_.ok()) closed_ = why;
    for (const auto& [peer, pair] : pairs_) pairs.push_back(pair);
    for (const auto& [raw, entry] : connections_) {
      if (auto connection = entry.connection.lock()) connections.push_back(std::move(connection));
    }
  }
  for (const PeerStatePtr& pair : pairs) ClosePeer(pair, why);
  for (const auto& connection : connections) connection->Close(why);
}

std::vector<std::shared_ptr<TensorResponder>> PeerConnectionPool::Responders() const {
  std::vector<std::shared_ptr<TensorResponder>> responders;
  SpinLockHolder lock(&mu_);
  for (const auto& [raw, entry] : connections_) {
    if (auto responder = entry.responder.lock()) responders.push_back(std::move(responder));
  }
  return responders;
}

size_t PeerConnectionPool::unfinished_sends() const {
  size_t count = 0;
  for (const auto& responder : Responders()) count += responder->unfinished();
  return count;
}

void PeerConnectionPool::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  for (const auto& responder : Responders()) responder->ForEachTransfer(min_age, visit);
}

size_t PeerConnectionPool::connection_count() const {
  SpinLockHolder lock(&mu_);
  size_t count = connections_.size();
  for (const auto& [peer, pair] : pairs_) {
    count += pair->chosen == nullptr && pair->opening == nullptr ? 1 : 0;
  }
  for (const auto& responder : ended_) count += responder.expired() ? 0 : 1;
  return count;
}

TableSizes PeerConnectionPool::InnerTableSizes() const {
  std::vector<std::shared_ptr<TensorRequester>> requesters;
  TableSizes sizes;
  {
    SpinLockHolder lock(&mu_);
    for (const auto& [peer, pair] : pairs_) requesters.push_back(pair->requester);
    sizes["peers.pairs"] = pairs_.size();
    sizes["peers.connections"] = connections_.size();
    sizes["peers.last_connections"] = last_connections_.size();
    sizes["peers.ended"] = ended_.size();
  }
  sizes["peers.pending_hellos"] = pending_hellos_.size();
  for (const auto& requester : requesters) {
    for (const auto& [name, size] : requester->InnerTableSizes()) sizes[name] += size;
  }
  for (const auto& responder : Responders()) {
    for (const auto& [name, size] : responder->InnerTableSizes()) sizes[name] += size;
  }
  return sizes;
}

}  // namespace ferry
