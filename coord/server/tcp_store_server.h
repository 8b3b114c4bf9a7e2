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
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/log_limiter.h"
#include "base/table_sizes.h"
#include "base/unique_fd.h"
#include "coord/core/store.h"
#include "coord/server/handover_proto.h"
#include "coord/server/tcp_store_report.h"
#include "coord/server/tcp_store_shared.h"
#include "coord/server/tcp_store_worker.h"
#include "coord/tcpstore/tcp_store_scopes.h"
#include "net/listener.h"
#include "net/paused_loop.h"

namespace ferry::coord {

// The memory of incomplete requests, unread replies and waits.
struct TcpStoreMemory {
  size_t client_bytes = 0;
  size_t max_client_bytes = 0;
};

// Thread-safe. A connection is served by one of a few threads, "ferry-tcpstore": requests need no
// hand-off to another thread, and pending waits occupy none.
class TcpStoreServer final {
 public:
  static constexpr int kMaxThreads = 8;
  // One up to 3 usable processors, two up to 7, then four: the system calls of a request take about
  // ten times as long as its part with the lock.
  static int DefaultThreads();

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
  void Take(UniqueFd connection) ABSL_LOCKS_EXCLUDED(shared_.mu);

  // Opens the listener of a scope, as Listener::OpenTcp. May block; called without the lock.
  using OpenListener = absl::FunctionRef<absl::StatusOr<std::unique_ptr<Listener>>()>;
  // Adds a reference to the scope `name`, and returns its port, which the first call opens.
  //   Errors: as TcpStoreScopes::Open and `open`; RESOURCE_EXHAUSTED if all free descriptors are
  //   over DescriptorLimit.
  absl::StatusOr<int> OpenScope(absl::string_view name, OpenListener open)
      ABSL_LOCKS_EXCLUDED(shared_.mu);
  // Releases a reference; the last one closes the port. Connected clients are still served.
  //   Errors: NOT_FOUND.
  absl::Status CloseScope(absl::string_view name) ABSL_LOCKS_EXCLUDED(shared_.mu);

  // See ReportTcpStores and ListTcpStore.
  std::vector<TcpStoreScopeReport> Report(size_t max_waits) const {
    return ReportTcpStores(shared_, max_waits);
  }
  absl::StatusOr<std::vector<StoreEntry>> List(absl::string_view scope, absl::string_view prefix,
                                               size_t limit) const {
    return ListTcpStore(shared_, scope, prefix, limit);
  }
  TcpStoreMemory Memory() const;
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(shared_.mu);

  // Stops serving as long as the result exists. Take and the listeners must not be called
  // meanwhile: their loops are paused first.
  std::vector<PausedLoop> Pause() ABSL_LOCKS_EXCLUDED(shared_.mu);
  // The scopes, with their connections. REQUIRES: paused; no scope has a port.
  std::vector<TcpStoreScopeState> Export() ABSL_LOCKS_EXCLUDED(shared_.mu);
  // Goes on with exported scopes, and owns the connections in them. Called once, before any other
  // method.
  //   Errors: as TcpStore::Restore and TcpStoreSession::Restore; all connections are closed then,
  //   and this must not be used any more.
  absl::Status Restore(std::vector<TcpStoreScopeState> scopes) ABSL_LOCKS_EXCLUDED(shared_.mu);
  // The number of scopes that have a port.
  size_t port_count() const ABSL_LOCKS_EXCLUDED(shared_.mu);

  // Closes all connections and ports. A second call does nothing.
  void Stop();

 private:
  static constexpr unsigned char kLastOp = 18;

  explicit TcpStoreServer(TcpStoreServerOptions options);

  // Passes a new connection to a worker. A null scope stands for that of the coordinator's port.
  void Serve(UniqueFd connection, std::shared_ptr<TcpStoreScope> scope)
      ABSL_LOCKS_EXCLUDED(shared_.mu);
  // Calls `done` on the loop of workers_[last] after all workers, beginning with the next one, have
  // handled the events that the kernel has reported until now.
  void AfterPendingEvents(size_t worker, size_t last, absl::AnyInvocable<void() &&> done);
  // On the worker's loop.
  void Begin(TcpStoreWorker& worker, UniqueFd connection, std::shared_ptr<TcpStoreScope> scope)
      ABSL_LOCKS_EXCLUDED(shared_.mu);
  // Adds a client of the scope. On the worker's loop, or while it is paused.
  std::shared_ptr<TcpStoreConnection> AddClient(TcpStoreWorker& worker, UniqueFd connection,
                                                std::shared_ptr<TcpStoreScope> scope)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mu);
  // Adds the connections to `restored`. REQUIRES: paused.
  absl::Status RestoreScope(TcpStoreScopeState state,
                            std::vector<std::shared_ptr<TcpStoreConnection>>& restored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mu);
  TcpStoreWorker& NextWorker() {
    return *workers_[next_worker_.fetch_add(1, std::memory_order_relaxed) % workers_.size()];
  }
  bool HasDescriptorsFor(const UniqueFd& connection);
  // If the port of the scope is open, adds a reference and returns the port; otherwise returns 0.
  //   Errors: as TcpStoreScopes::Open.
  absl::StatusOr<int> HoldOpenPort(absl::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mu);
  // Applies timeouts periodically, while there is anything to time out. On the first worker's loop.
  void Tick() ABSL_LOCKS_EXCLUDED(shared_.mu);
  void TickLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mu);

  TcpStoreShared shared_;
  // Constant after Create.
  std::vector<std::unique_ptr<TcpStoreWorker>> workers_;
  // Limits the lines about connections that were not accepted.
  LogLimiter refused_log_;
  std::atomic<size_t> next_worker_{0};

  // The number of connections that are on the way from Serve to Begin.
  size_t arriving_ ABSL_GUARDED_BY(shared_.mu) = 0;
  bool will_tick_ ABSL_GUARDED_BY(shared_.mu) = false;
  // On the first worker's loop.
  absl::Time period_end_ = absl::InfinitePast();
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_SERVER_H_
