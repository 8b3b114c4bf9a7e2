// SPDX-License-Identifier: Apache-2.0
// TcpStoreServer: serves PyTorch's TCPStore protocol on the coordinator's port and on a port per
// scope.
#ifndef FERRY_COORD_SERVER_TCP_STORE_SERVER_H_
#define FERRY_COORD_SERVER_TCP_STORE_SERVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/log_limiter.h"
#include "base/table_sizes.h"
#include "base/unique_fd.h"
#include "base/usable_resources.h"
#include "coord/core/completions.h"
#include "coord/core/options.h"
#include "coord/tcpstore/tcp_store_budget.h"
#include "coord/tcpstore/tcp_store_missing.h"
#include "coord/tcpstore/tcp_store_request.h"
#include "coord/tcpstore/tcp_store_scopes.h"
#include "net/listener.h"
#include "net/socket_loop.h"

namespace ferry::coord {

struct TcpStoreServerOptions {
  // Limits on keys, values and store size, for each scope.
  CoordinatorOptions limits;
  TcpStoreLimits request_limits;
  // As in ServerOptions.
  absl::Duration keepalive_time;
  absl::Duration keepalive_timeout;
  // See TcpStoreScopes.
  absl::Duration idle_timeout = absl::Seconds(1);
  // See TcpStoreBudget. A request is limited to a quarter of it.
  size_t max_client_bytes = ShareOfMemory(size_t{1} << 30, 4);
};

// The memory of incomplete requests, unread replies and waits.
struct TcpStoreMemory {
  size_t client_bytes = 0;
  size_t max_client_bytes = 0;
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
  size_t wait_count = 0;
  std::vector<TcpStoreWaitReport> waits;
  // The keys that clients wait for, those with most waits first.
  std::vector<MissingTcpStoreKey> missing;
};

// Thread-safe. All connections are served by one thread, "ferry-tcpstore": requests need no
// hand-off to another thread, and pending waits occupy none.
class TcpStoreServer final {
 public:
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Create(TcpStoreServerOptions options);
  // Calls Stop.
  ~TcpStoreServer();

  // True if a connection that begins with this byte is a TCPStore client. gRPC begins with 'P',
  // HTTP/1 with a letter, and Ferry's own protocols with 'F' or '{'.
  static bool IsFirstByte(char first) { return static_cast<unsigned char>(first) <= kLastOp; }

  // Connections of stores, and those whose protocol is not known yet, are only served if their
  // descriptors are below this number. The rest, a quarter of RLIMIT_NOFILE but at most 1024, is
  // reserved for gRPC, agents and accept().
  static uint64_t DescriptorLimit();

  // Serves a connection of the coordinator's port. Never blocks. Closes it if its descriptor
  // is over DescriptorLimit; PyTorch's clients try again.
  void Take(UniqueFd connection) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens the listener of a scope, as Listener::OpenTcp. May block; called without the lock.
  using OpenListener = absl::FunctionRef<absl::StatusOr<std::unique_ptr<Listener>>()>;
  // Adds a reference to the scope `name`, and returns its port, which the first call opens.
  //   Errors: as TcpStoreScopes::Open and `open`; RESOURCE_EXHAUSTED if all free descriptors are
  //   over DescriptorLimit.
  absl::StatusOr<int> OpenScope(absl::string_view name, OpenListener open) ABSL_LOCKS_EXCLUDED(mu_);
  // Releases a reference; the last one closes the port. Connected clients are still served.
  //   Errors: NOT_FOUND.
  absl::Status CloseScope(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns all scopes, each with at most `max_waits` waits, oldest first, and missing keys. At
  // most kMaxWaitsRead waits of all scopes together are read. Takes the lock repeatedly for short
  // times, so the result is not a snapshot. Must not be called on the loop.
  static constexpr size_t kMaxWaitsRead = 8192;
  std::vector<TcpStoreScopeReport> Report(size_t max_waits) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the entries of a scope whose keys begin with `prefix`, ordered by key; at most `limit`,
  // where 0 means no limit.
  //   Errors: NOT_FOUND when there is no such scope.
  absl::StatusOr<std::vector<StoreEntry>> List(absl::string_view scope, absl::string_view prefix,
                                               size_t limit) const ABSL_LOCKS_EXCLUDED(mu_);
  TcpStoreMemory Memory() const;
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

  // Closes all connections and ports. A second call does nothing.
  void Stop();

 private:
  class Connection;

  // The port of a named scope.
  struct Port {
    std::shared_ptr<TcpStoreScope> scope;
    std::unique_ptr<Listener> listener;
  };

  static constexpr unsigned char kLastOp = 18;

  explicit TcpStoreServer(TcpStoreServerOptions options);

  void Serve(UniqueFd connection, std::shared_ptr<TcpStoreScope> scope) ABSL_LOCKS_EXCLUDED(mu_);
  // On the loop.
  void Begin(UniqueFd connection, std::shared_ptr<TcpStoreScope> scope) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasDescriptorsFor(const UniqueFd& connection);
  // If the port of the scope is open, adds a reference and returns the port; otherwise returns 0.
  //   Errors: as TcpStoreScopes::Open.
  absl::StatusOr<int> HoldOpenPort(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TcpStoreScopeReport ReportScope(TcpStoreScope& scope, size_t max_waits, size_t& waits_left) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the callbacks of waits that have ended, which add their connections to ready_. On the
  // loop.
  void RunCompletions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes the replies of the connections in ready_. On the loop.
  void FlushReady() ABSL_LOCKS_EXCLUDED(mu_);
  // Applies timeouts periodically, while there is anything to time out. On the loop.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  void TickLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Flow control of counted connections: see TcpStoreBudget. On the loop.
  void ResumeReceiving();
  void CountReplacedValues();
  void CloseStalled();

  // Constant after Create.
  const TcpStoreServerOptions options_;
  std::shared_ptr<SocketLoop> loop_;

  // Constant after Create. They limit the log lines that misbehaving clients can cause.
  LogLimiter closed_log_;
  LogLimiter refused_log_;

  // Loop only.
  bool is_flushing_ = false;
  // Connections whose waits have ended.
  std::vector<std::shared_ptr<Connection>> ready_;
  TcpStoreBudget budget_;
  // Connections that the budget counts, and those with unread replies.
  absl::flat_hash_map<TcpStoreClient, Connection*> counted_;
  absl::flat_hash_set<Connection*> writing_;
  absl::Time period_end_ = absl::InfinitePast();
  // A copy for status reports.
  std::atomic<size_t> client_bytes_{0};

  mutable absl::Mutex mu_;
  Completions completions_ ABSL_GUARDED_BY(mu_);
  TcpStoreScopes scopes_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<std::string, Port> ports_ ABSL_GUARDED_BY(mu_);
  uint64_t last_client_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<TcpStoreClient, std::string> peers_ ABSL_GUARDED_BY(mu_);
  bool will_tick_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_SERVER_H_
