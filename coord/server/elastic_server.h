// SPDX-License-Identifier: Apache-2.0
// ElasticServer: serves the rendezvous of PyTorch's nodes (ferry.elastic.v1) on the coordinator's
// port.
#ifndef FERRY_COORD_SERVER_ELASTIC_SERVER_H_
#define FERRY_COORD_SERVER_ELASTIC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "base/unique_fd.h"
#include "coord/core/completions.h"
#include "coord/elastic/elastic_rendezvous.h"
#include "coord/server/tcp_store_holds.h"
#include "net/loop.h"
#include "proto/ferry_elastic.pb.h"

namespace ferry::coord {

struct ElasticServerOptions {
  ElasticOptions elastic;
  // As in ServerOptions.
  absl::Duration keepalive_time;
  absl::Duration keepalive_timeout;
  // Connections without a request for so long are closed.
  absl::Duration hello_timeout;
};

// Thread-safe. Has no thread of its own: connections are served on a loop, and pending joins occupy
// no thread. Lock order: mu_, then that of the TcpStoreServer.
class ElasticServer final {
 public:
  static constexpr char kFirstByte = '{';
  // The maximum size of a request.
  static constexpr size_t kMaxLineBytes = size_t{16} << 10;

  // The server in `stores` outlives it. The loop ends before it is destroyed.
  ElasticServer(std::shared_ptr<Loop> loop, TcpStorePorts stores, ElasticServerOptions options);
  ~ElasticServer();

  // Serves a connection. Never blocks. Closes it if its descriptor is over
  // TcpStoreServer::DescriptorLimit; the clients try again.
  void Take(UniqueFd connection) ABSL_LOCKS_EXCLUDED(mu_);

  std::vector<ElasticRunReport> Report() const ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all runs. No request is answered any more, nor are those that wait: connections end with
  // the loop, and clients ask the coordinator that comes next.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Connection;
  class Stores;

  // Executes a request of the connection; the reply to a Join may be sent later.
  void Execute(const std::shared_ptr<Connection>& connection, const elastic::v1::Request& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Detach(const Connection& connection) ABSL_LOCKS_EXCLUDED(mu_);
  void RunCompletions() ABSL_LOCKS_EXCLUDED(mu_);
  // Applies timeouts periodically while there are runs. On the loop.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  void TickLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::shared_ptr<Loop> loop_;
  const ElasticServerOptions options_;
  const std::unique_ptr<Stores> stores_;

  mutable absl::Mutex mu_;
  Completions completions_ ABSL_GUARDED_BY(mu_);
  ElasticRendezvous rendezvous_ ABSL_GUARDED_BY(mu_);
  uint64_t last_connection_ ABSL_GUARDED_BY(mu_) = 0;
  bool will_tick_ ABSL_GUARDED_BY(mu_) = false;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_ELASTIC_SERVER_H_
