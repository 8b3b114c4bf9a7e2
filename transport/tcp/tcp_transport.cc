// SPDX-License-Identifier: Apache-2.0
// What it costs, and whose connections come in.
#include "transport/tcp/tcp_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/tcp/loopback_probe.h"
#include "transport/tcp/tcp_inlet.h"

namespace ferry {
namespace {

// Until something has been seen: a fast network's latency, and a slow one's bandwidth.
constexpr absl::Duration kLatency = absl::Microseconds(50);
constexpr double kAssumedBytesPerSecond = 1e9;

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(TransportEnvironment environment,
                                                                   TcpTransportOptions options) {
  if (options.connections < 1 || options.connections > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.connections,
                     " connections of a pair; it must be from 1 to 64 (--tcp-connections, or in "
                     "programs TransportOptions::tcp.connections in ExchangeOptions::transports)"));
  }
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<DataPlane> plane, DataPlane::Create(options.connections));
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(environment), std::move(plane)));
}

TcpTransport::TcpTransport(TransportEnvironment environment, std::unique_ptr<DataPlane> plane)
    : environment_(std::move(environment)),
      plane_(std::move(plane)),
      loopback_(MeasureLoopback()) {}

TcpTransport::~TcpTransport() = default;

absl::StatusOr<PathCost> TcpTransport::Cost(const PathQuery& query) const {
  if (query.source->lanes.tcp.empty()) {
    return absl::UnavailableError(
        absl::StrCat(Describe(query.source->peer), " listens on no TCP address"));
  }
  const std::string& machine = query.source->boot_id;
  // Between GPUs it is beside what nobody has measured at start: both are assumed.
  const bool is_between_hosts = query.source_place.space == MemorySpace::kHost &&
                                query.destination_place.space == MemorySpace::kHost;
  if (is_between_hosts && loopback_.ok() && !machine.empty() &&
      machine == query.destination->boot_id) {
    return *loopback_;
  }
  return PathCost{kLatency, kAssumedBytesPerSecond};
}

std::shared_ptr<Outlet> TcpTransport::MakeOutlet(const Endpoint& peer) {
  auto outlet = std::make_shared<TcpOutlet>(*plane_, *environment_.loop);
  absl::MutexLock lock(&mu_);
  // Those of peers that have gone.
  absl::erase_if(outlets_, [](const auto& each) { return each.second.expired(); });
  outlets_[{peer.peer.node_id, peer.peer.incarnation}] = outlet;
  return outlet;
}

std::shared_ptr<Inlet> TcpTransport::MakeInlet(const Endpoint& peer, ReleaseCallback release) {
  return std::make_shared<TcpInlet>(environment_, *plane_, peer);
}

bool TcpTransport::OnDataConnection(DataConnection& connection) {
  std::shared_ptr<TcpOutlet> outlet;
  {
    absl::MutexLock lock(&mu_);
    const auto found = outlets_.find({connection.peer.node_id, connection.peer.incarnation});
    if (found != outlets_.end()) outlet = found->second.lock();
  }
  if (outlet == nullptr) return false;
  outlet->AddConnection(std::move(connection));
  return true;
}

}  // namespace ferry
