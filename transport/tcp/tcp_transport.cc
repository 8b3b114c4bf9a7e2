// SPDX-License-Identifier: Apache-2.0
// Cost of TCP, and incoming data connections.
#include "transport/tcp/tcp_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/tcp/loopback_probe.h"
#include "transport/tcp/tcp_receiver.h"

namespace ferry {
namespace {

// Until measured: a fast network's latency, and a slow one's bandwidth.
constexpr absl::Duration kLatency = absl::Microseconds(50);
constexpr double kAssumedBytesPerSecond = 1e9;

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(TransportEnvironment environment,
                                                                   TcpTransportOptions options) {
  if (options.connections < 1 || options.connections > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.connections,
                     " connections of a pair; it must be from 1 to 64 (--tcp-connections)"));
  }
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<DataPlane> plane, DataPlane::Create(options.connections));
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(environment), std::move(plane)));
}

TcpTransport::TcpTransport(TransportEnvironment environment, std::unique_ptr<DataPlane> plane)
    : Transport(kInfo),
      environment_(std::move(environment)),
      plane_(std::move(plane)),
      loopback_(MeasureLoopback()) {}

TcpTransport::~TcpTransport() = default;

absl::StatusOr<PathCost> TcpTransport::Cost(const PathQuery& query) const {
  if (query.source->channels.tcp.empty()) {
    return absl::UnavailableError(
        absl::StrCat(Describe(query.source->peer), " listens on no TCP address"));
  }
  const std::string& machine = query.source->boot_id;
  // For GPU memory, startup measured nothing comparable: both numbers are assumed.
  const bool is_between_hosts = query.source_location.space == MemorySpace::kHost &&
                                query.destination_location.space == MemorySpace::kHost;
  if (is_between_hosts && loopback_.ok() && !machine.empty() &&
      machine == query.destination->boot_id) {
    return *loopback_;
  }
  return PathCost{kLatency, kAssumedBytesPerSecond};
}

std::shared_ptr<TransportSender> TcpTransport::CreateSender(const Endpoint& peer) {
  auto sender = std::make_shared<TcpSender>(*plane_, *environment_.loop);
  absl::MutexLock lock(&mu_);
  // Remove those of failed peers.
  absl::erase_if(senders_, [](const auto& each) { return each.second.expired(); });
  senders_[{peer.peer.node_id, peer.peer.incarnation}] = sender;
  return sender;
}

std::shared_ptr<TransportReceiver> TcpTransport::CreateReceiver(const Endpoint& peer,
                                                                ReleaseCallback release) {
  return std::make_shared<TcpReceiver>(environment_, *plane_, peer);
}

bool TcpTransport::OnDataConnection(DataConnection& connection) {
  std::shared_ptr<TcpSender> sender;
  {
    absl::MutexLock lock(&mu_);
    const auto found = senders_.find({connection.peer.node_id, connection.peer.incarnation});
    if (found != senders_.end()) sender = found->second.lock();
  }
  if (sender == nullptr) return false;
  sender->AddConnection(std::move(connection));
  return true;
}

}  // namespace ferry
