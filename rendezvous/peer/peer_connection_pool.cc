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
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

absl::Status AnotherIsTaken(const PeerId& peer) {
  return absl::CancelledError(
      absl::StrCat("there is another connection with ", Describe(peer), ", which is used"));
}

}  // namespace

PeerConnectionPool::PeerConnectionPool(const TransferContext& context) : context_(context) {}

PeerConnectionPool::~PeerConnectionPool() = default;

bool PeerConnectionPool::Decides(const PeerId& peer) const {
  const PeerId& self = context_.self.peer;
  return std::tie(self.node_id, self.incarnation) < std::tie(peer.node_id, peer.incarnation);
}

absl::StatusOr<std::shared_ptr<TensorRequester>> PeerConnectionPool::Find(
    const PeerId& peer) const {
  SpinLockHolder lock(&mu_);
  if (!closed_.ok()) return closed_;
  const auto found = pairs_.find(peer);
  if (found == pairs_.end() || found->second->client->has_ended()) return nullptr;
  return found->second->client;
}

PeerConnectionPool::PairPtr PeerConnectionPool::MakePair(const Endpoint& peer) {
  auto pair = std::make_shared<Pair>(std::make_shared<TensorRequester>(context_, peer));
  pair->pause = kFirstPause;
  pairs_[peer.peer] = pair;
  return pair;
}

std::string PeerConnectionPool::WhyNoUnixSocket(const Endpoint& peer) const {
  const Endpoint& self = context_.self;
  const PathPolicy& policy = context_.policy;
  if (policy.required.moves_over_tcp) return absl::StrCat("only ", policy.require, " is allowed");
  if (self.boot_id.empty() || self.boot_id != peer.boot_id) return "they are on two machines";
  if (!context_.why_no_shared_memory.empty()) return context_.why_no_shared_memory;
  if (!peer.channels.unix_name.empty()) return "";
  return absl::StrCat(Describe(peer.peer), " listens on no Unix socket");
}

PeerConnectionPool::Way PeerConnectionPool::WayTo(const Endpoint& peer) const {
  SpinLockHolder lock(&mu_);
  if (const auto found = pairs_.find(peer.peer); found != pairs_.end()) {
    return {found->second->client->descriptors_unavailable_reason()};
  }
  const auto found = past_.find(peer.peer.node_id);
  if (found != past_.end() && found->second.incarnation == peer.peer.incarnation) {
    return found->second.way;
  }
  return {WhyNoUnixSocket(peer)};
}

absl::StatusOr<std::shared_ptr<TensorRequester>> PeerConnectionPool::Open(const Endpoint& peer) {
  std::string why_not = WhyNoUnixSocket(peer);
  PairPtr pair;
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return closed_;
    const auto found = pairs_.find(peer.peer);
    if (found != pairs_.end() && !found->second->client->has_ended()) return found->second->client;
    pair = MakePair(peer);
    pair->is_trying_unix = why_not.empty();
  }
  pair->client->set_descriptors_unavailable_reason(std::move(why_not));
  Attempt(pair);
  return pair->client;
}

void PeerConnectionPool::Attempt(const PairPtr& pair) {
  auto link = std::make_shared<PeerConnection>(context_, shared_from_this(), pair->peer(),
                                               /*is_opener=*/true);
  bool use_unix = false;
  {
    SpinLockHolder lock(&mu_);
    if (pair->is_over || pair->taken != nullptr) return;
    pair->opening = link;
    use_unix = pair->is_trying_unix;
    links_[link.get()] = {.link = link, .pair = pair, .server = {}};
  }
  FERRY_LOG_DEBUG(kTransport, "connecting to peer: peer={} by {}", pair->peer().node_id,
                  use_unix ? "its Unix socket" : "TCP");
  Connector::AttemptId attempt =
      connector_->Connect(pair->peer(), pair->client->producer().channels, use_unix, link);
  {
    SpinLockHolder lock(&mu_);
    if (pair->opening == link) pair->attempt = std::exchange(attempt, 0);
  }
  // The attempt was abandoned meanwhile, unless it has ended by itself.
  connector_->CancelConnect(attempt, AnotherIsTaken(pair->peer()));
}

std::shared_ptr<ControlHandler> PeerConnectionPool::Accept(const PeerId& peer) {
  auto link =
      std::make_shared<PeerConnection>(context_, shared_from_this(), peer, /*is_opener=*/false);
  SpinLockHolder lock(&mu_);
  if (!closed_.ok()) return nullptr;
  links_[link.get()] = {.link = link, .pair = nullptr, .server = {}};
  return link;
}

absl::Status PeerConnectionPool::OnLinkOpen(const std::shared_ptr<PeerConnection>& link) {
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return closed_;
    if (const PairPtr& pair = links_[link.get()].pair; pair != nullptr) {
      if (pair->opening != link) return AnotherIsTaken(link->peer());
      // It sends HELLO next.
      if (Decides(link->peer())) {
        pair->taken = std::move(pair->opening);
        pair->attempt = 0;
      }
    }
  }
  silent_.push_back({connector_->Now() + context_.connect_timeout, link});
  AwaitHello();
  return absl::OkStatus();
}

void PeerConnectionPool::AwaitHello() {
  if (silent_.empty() || std::exchange(awaits_hello_, true)) return;
  connector_->RunAfter(silent_.front().until - connector_->Now(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->EndWhoIsSilent();
  });
}

void PeerConnectionPool::EndWhoIsSilent() {
  awaits_hello_ = false;
  const absl::Time now = connector_->Now();
  std::vector<std::shared_ptr<PeerConnection>> late;
  while (!silent_.empty() && silent_.front().until <= now) {
    if (auto link = silent_.front().link.lock()) late.push_back(std::move(link));
    silent_.pop_front();
  }
  for (const auto& link : late) {
    link->Close(absl::DeadlineExceededError(absl::StrCat(Describe(link->peer()),
                                                         " is connected, and has not answered for ",
                                                         ShortDuration(context_.connect_timeout))));
  }
  AwaitHello();
}

void PeerConnectionPool::RemoveSilent(const PeerConnection& link) {
  std::erase_if(silent_, [&link](const Silent& each) { return each.link.lock().get() == &link; });
}

absl::StatusOr<std::shared_ptr<TensorRequester>> PeerConnectionPool::OnLinkHello(
    const std::shared_ptr<PeerConnection>& link, const Endpoint& peer) {
  RemoveSilent(*link);
  if (!link->is_opener()) {
    std::shared_ptr<PeerConnection> replaced;
    FERRY_ASSIGN_OR_RETURN(const PairPtr pair, TakePeersLink(link, peer, replaced));
    if (replaced != nullptr) {
      replaced->Close(absl::UnavailableError(absl::StrCat(
          Describe(peer.peer), " has opened another connection: it has lost this one")));
    }
    return pair->client;
  }
  SpinLockHolder lock(&mu_);
  if (!closed_.ok()) return closed_;
  const PairPtr& pair = links_[link.get()].pair;
  if (pair->taken == nullptr && pair->opening == link) {
    pair->taken = std::move(pair->opening);
    pair->attempt = 0;
  }
  if (pair->is_over || pair->taken != link) return AnotherIsTaken(link->peer());
  return pair->client;
}

absl::StatusOr<PeerConnectionPool::PairPtr> PeerConnectionPool::TakePeersLink(
    const std::shared_ptr<PeerConnection>& link, const Endpoint& peer,
    std::shared_ptr<PeerConnection>& replaced) {
  PairPtr pair;
  std::shared_ptr<PeerConnection> in_the_way;
  std::shared_ptr<PeerConnection> opening;
  Connector::AttemptId attempt = 0;
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return closed_;
    if (const auto found = pairs_.find(link->peer());
        found != pairs_.end() && !found->second->client->has_ended()) {
      pair = found->second;
      in_the_way = pair->taken;
    }
    if (in_the_way == nullptr || !Decides(link->peer())) {
      replaced = std::exchange(in_the_way, nullptr);
      if (pair == nullptr || replaced != nullptr) pair = MakePair(peer);
      opening = std::move(pair->opening);
      attempt = std::exchange(pair->attempt, 0);
      pair->taken = link;
      links_[link.get()].pair = pair;
    }
  }
  if (in_the_way != nullptr) {
    // If the peer has closed it, this side finds out now.
    in_the_way->Probe();
    return absl::AlreadyExistsError(
        absl::StrCat("there is another connection with ", Describe(link->peer())));
  }
  GiveUp(opening, attempt, AnotherIsTaken(link->peer()));
  return pair;
}

void PeerConnectionPool::OnLinkServes(PeerConnection& link,
                                      const std::shared_ptr<TensorResponder>& server) {
  SpinLockHolder lock(&mu_);
  links_[&link].server = server;
}

void PeerConnectionPool::OnLinkClosed(PeerConnection& link, const absl::Status& why) {
  RemoveSilent(link);
  PairPtr pair;
  bool was_taken = false;
  bool has_failed = false;
  {
    SpinLockHolder lock(&mu_);
    pair = links_[&link].pair;
    if (pair != nullptr && !pair->is_over) {
      was_taken = pair->taken.get() == &link;
      has_failed = pair->opening.get() == &link;
      if (was_taken) pair->is_over = true;
      if (has_failed) {
        pair->opening = nullptr;
        pair->attempt = 0;
      }
    }
  }
  if (was_taken) pair->client->OnClosed(why);
  if (has_failed) OnAttemptFailed(pair, link, why);
  SpinLockHolder lock(&mu_);
  if (was_taken) Erase(pair);
  const auto known = links_.extract(&link);
  std::erase_if(ended_, [](const auto& each) { return each.expired(); });
  if (!known.mapped().server.expired()) ended_.push_back(known.mapped().server);
}

void PeerConnectionPool::Erase(const PairPtr& pair) {
  const auto found = pairs_.find(pair->peer());
  // It may have been replaced.
  if (found == pairs_.end() || found->second != pair) return;
  past_[pair->peer().node_id] = {pair->peer().incarnation,
                                 {pair->client->descriptors_unavailable_reason()}};
  pairs_.erase(found);
}

bool PeerConnectionPool::IsPeerOpening(const PeerId& peer) const {
  return std::any_of(links_.begin(), links_.end(), [&peer](const auto& each) {
    if (each.second.pair != nullptr) return false;
    const auto link = each.second.link.lock();
    return link != nullptr && link->peer() == peer;
  });
}

void PeerConnectionPool::OnAttemptFailed(const PairPtr& pair, const PeerConnection& link,
                                         const absl::Status& why) {
  const std::vector<std::string>& tcp = pair->client->producer().channels.tcp;
  bool tries_tcp = false;
  bool tries_again = false;
  absl::Duration pause;
  {
    SpinLockHolder lock(&mu_);
    if (closed_.ok() && pair->is_trying_unix && !link.was_open()) {
      // Most likely another network namespace. The policy decides whether to try TCP.
      pair->is_trying_unix = false;
      tries_tcp = !context_.policy.required.needs_fd_channel && !tcp.empty();
    }
    if (closed_.ok() && (link.was_refused() || IsPeerOpening(pair->peer())) &&
        pair->paused < context_.connect_timeout) {
      tries_again = true;
      pause = pair->pause;
      pair->paused += pause;
      pair->pause = std::min(2 * pause, kLongestPause);
    }
  }
  if (tries_tcp || tries_again) {
    FERRY_LOG_INFO(kTransport, "reconnecting to the peer: peer={} by {} after {}: {}",
                   pair->peer().node_id, tries_tcp ? "TCP" : "the same way",
                   ShortDuration(tries_again ? pause : absl::ZeroDuration()), why);
  }
  if (tries_tcp) {
    pair->client->set_descriptors_unavailable_reason(std::string(why.message()));
    return Attempt(pair);
  }
  if (tries_again) {
    return connector_->RunAfter(pause, [weak = weak_from_this(), pair] {
      if (const auto self = weak.lock()) self->Attempt(pair);
    });
  }
  EndWithoutConnection(pair, link.was_refused() ? absl::UnavailableError(why.message()) : why);
}

void PeerConnectionPool::EndWithoutConnection(const PairPtr& pair, const absl::Status& why) {
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
  GiveUp(opening, attempt, why);
  pair->client->OnClosed(why);
  SpinLockHolder lock(&mu_);
  Erase(pair);
}

void PeerConnectionPool::GiveUp(const std::shared_ptr<PeerConnection>& opening,
                                Connector::AttemptId attempt, const absl::Status& why) {
  connector_->CancelConnect(attempt, why);
  if (opening != nullptr) opening->Close(why);
}

void PeerConnectionPool::Drop(const PairPtr& pair, const absl::Status& why) {
  std::shared_ptr<PeerConnection> taken;
  {
    SpinLockHolder lock(&mu_);
    if (pair->is_over) return;
    taken = pair->taken;
  }
  if (taken != nullptr) {
    pair->client->Close(why);
    return taken->Close(why);
  }
  connector_->RunAfter(absl::ZeroDuration(), [self = shared_from_this(), pair, why] {
    std::shared_ptr<PeerConnection> taken_since;
    {
      SpinLockHolder lock(&self->mu_);
      taken_since = pair->taken;
    }
    if (taken_since != nullptr) return taken_since->Close(why);
    self->EndWithoutConnection(pair, why);
  });
}

void PeerConnectionPool::Forget(int32_t node_id, const absl::Status& why,
                                uint64_t alive_incarnation) {
  std::vector<PairPtr> dead;
  {
    SpinLockHolder lock(&mu_);
    for (const auto& [peer, pair] : pairs_) {
      if (peer.node_id == node_id &&
          (alive_incarnation == 0 || peer.incarnation != alive_incarnation)) {
        dead.push_back(pair);
      }
    }
  }
  for (const PairPtr& pair : dead) Drop(pair, why);
}

void PeerConnectionPool::Close(const absl::Status& why) {
  std::vector<PairPtr> pairs;
  std::vector<std::shared_ptr<PeerConnection>> links;
  {
    SpinLockHolder lock(&mu_);
    if (closed_.ok()) closed_ = why;
    for (const auto& [peer, pair] : pairs_) pairs.push_back(pair);
    for (const auto& [raw, known] : links_) {
      if (auto link = known.link.lock()) links.push_back(std::move(link));
    }
  }
  for (const PairPtr& pair : pairs) Drop(pair, why);
  for (const auto& link : links) link->Close(why);
}

std::vector<std::shared_ptr<TensorResponder>> PeerConnectionPool::Servers() const {
  std::vector<std::shared_ptr<TensorResponder>> servers;
  SpinLockHolder lock(&mu_);
  for (const auto& [raw, known] : links_) {
    if (auto server = known.server.lock()) servers.push_back(std::move(server));
  }
  return servers;
}

size_t PeerConnectionPool::unfinished_sends() const {
  size_t count = 0;
  for (const auto& server : Servers()) count += server->unfinished();
  return count;
}

void PeerConnectionPool::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  for (const auto& server : Servers()) server->ForEachTransfer(min_age, visit);
}

size_t PeerConnectionPool::connection_count() const {
  SpinLockHolder lock(&mu_);
  size_t count = links_.size();
  for (const auto& [peer, pair] : pairs_) {
    count += pair->taken == nullptr && pair->opening == nullptr ? 1 : 0;
  }
  for (const auto& server : ended_) count += server.expired() ? 0 : 1;
  return count;
}

TableSizes PeerConnectionPool::InnerTableSizes() const {
  std::vector<std::shared_ptr<TensorRequester>> clients;
  TableSizes sizes;
  {
    SpinLockHolder lock(&mu_);
    for (const auto& [peer, pair] : pairs_) clients.push_back(pair->client);
    sizes["peers.pairs"] = pairs_.size();
    sizes["peers.links"] = links_.size();
    sizes["peers.past"] = past_.size();
    sizes["peers.ended"] = ended_.size();
  }
  sizes["peers.silent"] = silent_.size();
  for (const auto& client : clients) {
    for (const auto& [name, size] : client->InnerTableSizes()) sizes[name] += size;
  }
  for (const auto& server : Servers()) {
    for (const auto& [name, size] : server->InnerTableSizes()) sizes[name] += size;
  }
  return sizes;
}

}  // namespace ferry
