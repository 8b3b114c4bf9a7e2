// SPDX-License-Identifier: Apache-2.0
// TcpStoreServer: PyTorch's TCPStore protocol, on the coordinator's port and on a port per scope.
#ifndef FERRY_COORD_SERVER_TCP_STORE_SERVER_H_
#define FERRY_COORD_SERVER_TCP_STORE_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "base/unique_fd.h"
#include "coord/core/completions.h"
#include "coord/core/options.h"
#include "coord/tcpstore/tcp_store_missing.h"
#include "coord/tcpstore/tcp_store_request.h"
#include "coord/tcpstore/tcp_store_scopes.h"
#include "net/listener.h"
#include "net/socket_loop.h"

namespace ferry::coord {

struct TcpStoreServerOptions {
  // The limits on keys, values and the store's size, which hold for each scope.
  CoordinatorOptions limits;
  TcpStoreLimits request_limits;
  // As ServerOptions.
  absl::Duration keepalive_time;
  absl::Duration keepalive_timeout;
  // See TcpStoreScopes.
  absl::Duration idle_timeout = absl::Seconds(1);
};

// A pending wait, for status reports.
struct TcpStoreWaitReport {
  // The client's address, "ipv4:10.0.0.7:50112".
  std::string peer;
  TcpStoreWaitInfo wait;
};

struct TcpStoreScopeReport {
  std::string name;
  // 0 for the coordinator's own port.
  int port = 0;
  size_t clients = 0;
  int64_t keys = 0;
  size_t bytes = 0;
  std::vector<TcpStoreWaitReport> waits;
  // The keys of all waits, those of most waits first.
  std::vector<MissingTcpStoreKey> missing;
};

// Thread-safe. Thread: "ferry-tcpstore", which serves all connections, so that a request takes no
// hand-over to another thread and a wait none at all.
class TcpStoreServer final {
 public:
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Create(TcpStoreServerOptions options);
  // Calls Stop.
  ~TcpStoreServer();

  // True if a connection that begins with this byte is a store's client: gRPC's begin with 'P',
  // HTTP/1 with a letter, and Ferry's own with 'F'.
  static bool IsFirstByte(char first) { return static_cast<unsigned char>(first) <= kLastOp; }

  // Serves a connection of the coordinator's port. Never blocks.
  void Take(UniqueFd connection) ABSL_LOCKS_EXCLUDED(mu_);

  // Holds the scope `name` and returns the port of its clients. The first call opens the port:
  // `listen` is HOST:0, or HOST:PORT for a certain one.
  //   Errors: as TcpStoreScopes::Open and Listener::OpenTcp.
  absl::StatusOr<int> OpenScope(absl::string_view name, const std::string& listen)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends one OpenScope; the last one closes the port. Clients that are connected remain.
  //   Errors: NOT_FOUND.
  absl::Status CloseScope(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  // All scopes, with at most `max_waits` waits and missing keys each, the oldest waits first.
  std::vector<TcpStoreScopeReport> Report(size_t max_waits) const ABSL_LOCKS_EXCLUDED(mu_);
  // The entries of a scope whose keys begin with `prefix`, ordered by key; at most `limit` unless
  // that is 0.
  //   Errors: NOT_FOUND when there is no such scope.
  absl::StatusOr<std::vector<StoreEntry>> List(absl::string_view scope, absl::string_view prefix,
                                               size_t limit) const ABSL_LOCKS_EXCLUDED(mu_);
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

  // Closes all connections and ports. A second call does nothing.
  void Stop();

 private:
  class Connection;

  // A port of its own.
  struct Port {
    std::shared_ptr<TcpStoreScope> scope;
    std::unique_ptr<Listener> listener;
  };

  static constexpr unsigned char kLastOp = 18;

  explicit TcpStoreServer(TcpStoreServerOptions options);

  void Serve(UniqueFd connection, std::shared_ptr<TcpStoreScope> scope) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the callbacks of waits that have ended, which queue their connections in ready_. On the
  // loop.
  void RunCompletions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddReady(std::shared_ptr<Connection> connection);
  // Writes the replies of the connections in ready_. On the loop.
  void FlushReady() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls Advance periodically while there are scopes. On the loop.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  void TickLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after Create.
  const TcpStoreServerOptions options_;
  std::shared_ptr<SocketLoop> loop_;

  // Loop only.
  bool is_flushing_ = false;

  mutable absl::Mutex mu_;
  Completions completions_ ABSL_GUARDED_BY(mu_);
  TcpStoreScopes scopes_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<std::string, Port> ports_ ABSL_GUARDED_BY(mu_);
  uint64_t last_client_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<TcpStoreClient, std::string> peers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Connection>> ready_ ABSL_GUARDED_BY(mu_);
  bool will_tick_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_SERVER_H_
