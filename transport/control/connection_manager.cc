// SPDX-License-Identifier: Apache-2.0
// Owns listeners and attempts, and ends them.
#include "transport/control/connection_manager.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "net/listener.h"
#include "transport/control/connect_attempt.h"
#include "transport/control/incoming_attempts.h"

namespace ferry {

ConnectionManager::ConnectionManager(EventLoop& loop, std::shared_ptr<Shared> shared)
    : loop_(loop), shared_(std::move(shared)) {}

absl::StatusOr<std::unique_ptr<ConnectionManager>> ConnectionManager::Create(
    EventLoop& loop, ConnectionManagerOptions options, AcceptChannel accept_channel,
    AcceptData accept_data) {
  auto shared = std::make_shared<Shared>(loop, std::move(options), std::move(accept_channel),
                                         std::move(accept_data));
  auto connection_manager = std::unique_ptr<ConnectionManager>(new ConnectionManager(loop, shared));
  std::vector<std::shared_ptr<IncomingAttempts>> incoming;
  if (!shared->options.tcp_listen.empty()) {
    auto listener = Listener::OpenTcp(shared->options.tcp_listen);
    if (!listener.ok()) {
      return absl::Status(
          listener.status().code(),
          absl::StrCat(listener.status().message(),
                       " (--tensor-listen, in programs TransferOptions::listen_address)"));
    }
    connection_manager->tcp_port_ = (*listener)->port();
    incoming.push_back(std::make_shared<IncomingAttempts>(shared, *std::move(listener), false));
  }
  if (shared->options.unix_listen) {
    std::string name =
        absl::StrCat("ferry-", absl::BytesToHexString(GenerateSecret().substr(0, 12)));
    FERRY_ASSIGN_OR_RETURN(auto listener, Listener::OpenUnix(name));
    connection_manager->unix_name_ = std::move(name);
    incoming.push_back(std::make_shared<IncomingAttempts>(shared, std::move(listener), true));
  }
  absl::MutexLock lock(&shared->mu);
  shared->incoming = std::move(incoming);
  return connection_manager;
}

absl::Status ConnectionManager::Start() {
  std::vector<std::shared_ptr<IncomingAttempts>> incoming;
  {
    absl::MutexLock lock(&shared_->mu);
    incoming = shared_->incoming;
  }
  for (const auto& each : incoming) FERRY_RETURN_IF_ERROR(each->Start());
  return absl::OkStatus();
}

ConnectionManager::~ConnectionManager() { Close(); }

Connector::AttemptId ConnectionManager::Begin(std::shared_ptr<Attempt> attempt) {
  bool is_closed = false;
  {
    absl::MutexLock lock(&shared_->mu);
    is_closed = shared_->is_closed;
    attempt->id = ++shared_->last_id;
    if (!is_closed) shared_->attempts.insert(attempt);
  }
  const AttemptId id = attempt->id;
  loop_.Post([attempt = std::move(attempt), is_closed] {
    if (is_closed) return attempt->Cancel(absl::CancelledError("this process is leaving"));
    attempt->StartClient();
  });
  return id;
}

Connector::AttemptId ConnectionManager::Connect(const PeerId& peer, const PeerAddresses& addresses,
                                                bool use_unix,
                                                std::shared_ptr<ControlHandler> handler) {
  auto attempt = std::make_shared<Attempt>(
      shared_,
      AuthHandshake::Client(shared_->options.handshake, peer, ConnectionPurpose::kControl, 0), true,
      use_unix);
  attempt->unix_name = addresses.unix_name;
  attempt->tcp_addresses.assign(addresses.tcp.begin(), addresses.tcp.end());
  attempt->handler = std::move(handler);
  return Begin(std::move(attempt));
}

void ConnectionManager::ConnectData(const PeerId& peer, const PeerAddresses& addresses,
                                    uint32_t index, DataCallback done) {
  auto attempt = std::make_shared<Attempt>(
      shared_,
      AuthHandshake::Client(shared_->options.handshake, peer, ConnectionPurpose::kData, index),
      true, false);
  attempt->tcp_addresses.assign(addresses.tcp.begin(), addresses.tcp.end());
  attempt->on_data = std::move(done);
  Begin(std::move(attempt));
}

void ConnectionManager::CancelConnect(AttemptId id, const absl::Status& why) {
  if (id == 0) return;
  std::shared_ptr<Attempt> found;
  {
    absl::MutexLock lock(&shared_->mu);
    for (const auto& attempt : shared_->attempts) {
      if (attempt->id == id) found = attempt;
    }
  }
  if (found != nullptr) loop_.Post([found, why] { found->Cancel(why); });
}

void ConnectionManager::RunAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) {
  if (delay <= absl::ZeroDuration()) return loop_.Post(std::move(function));
  loop_.PostAt(Now() + delay, std::move(function));
}

absl::Time ConnectionManager::Now() const { return SteadyClock().Now(); }

ConnectionManagerStats ConnectionManager::stats() const {
  absl::MutexLock lock(&shared_->mu);
  return {.accepted = shared_->accepted.load(),
          .refused = shared_->refused.load(),
          .last_refusal = shared_->last_refusal};
}

void ConnectionManager::Close() {
  std::vector<std::shared_ptr<IncomingAttempts>> incoming;
  absl::flat_hash_set<std::shared_ptr<Attempt>> attempts;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->is_closed = true;
    incoming.swap(shared_->incoming);
    // Swapped out, since the list and the attempts keep each other alive: if the loop stops before
    // it runs this, the attempts and their sockets are freed anyway.
    attempts.swap(shared_->attempts);
  }
  for (const auto& each : incoming) each->Stop();
  for (const auto& attempt : attempts) {
    loop_.Post([attempt] { attempt->Cancel(absl::CancelledError("this process is leaving")); });
  }
}

}  // namespace ferry
