// SPDX-License-Identifier: Apache-2.0
// ConnectionWatch: detects the end of gRPC's connections, which gRPC does not report.
#ifndef FERRY_COORD_SERVER_CONNECTION_WATCH_H_
#define FERRY_COORD_SERVER_CONNECTION_WATCH_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "net/loop.h"

namespace ferry::coord {

// Thread-safe. A unary call of gRPC only reports that it was cancelled, not whether its client
// cancelled it or has gone. So a duplicate descriptor of the same connection is polled for its
// end: the peer's FIN or RST, or gRPC's own shutdown of a connection that does not answer probes.
// The cost is one descriptor per connection, and nothing else while the connection is open.
class ConnectionWatch final {
 public:
  // `peer`: as PeerName. Called on the loop.
  using EndCallback = std::function<void(const std::string& peer)>;

  ConnectionWatch(std::shared_ptr<Loop> loop, EndCallback on_end)
      : loop_(std::move(loop)), on_end_(std::make_shared<EndCallback>(std::move(on_end))) {}

  // Watches `connection`, which the caller keeps owning, until it ends. If no descriptor is
  // available, the connection is not watched, and its client is monitored by heartbeats alone.
  void Add(int connection, std::string peer);

 private:
  class Watched;

  const std::shared_ptr<Loop> loop_;
  // Shared with the watched connections, which may outlive this object.
  const std::shared_ptr<EndCallback> on_end_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONNECTION_WATCH_H_
