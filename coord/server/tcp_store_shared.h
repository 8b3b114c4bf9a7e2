// SPDX-License-Identifier: Apache-2.0
// TcpStoreShared: what the threads of a TcpStoreServer share: the stores, under one lock.
#ifndef FERRY_COORD_SERVER_TCP_STORE_SHARED_H_
#define FERRY_COORD_SERVER_TCP_STORE_SHARED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/log_limiter.h"
#include "base/usable_resources.h"
#include "coord/core/completions.h"
#include "coord/core/options.h"
#include "coord/server/tcp_store_flow.h"
#include "coord/tcpstore/tcp_store_request.h"
#include "coord/tcpstore/tcp_store_scopes.h"
#include "net/listener.h"

namespace ferry::coord {

class TcpStoreWorker;

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
  // The number of threads, at least 1.
  int threads = 1;
};

struct TcpStoreShared {
  explicit TcpStoreShared(TcpStoreServerOptions server_options)
      : options(std::move(server_options)),
        closed_log(SteadyClock(), /*lines=*/20, absl::Seconds(10)),
        flow(options.max_client_bytes, static_cast<size_t>(options.threads)),
        scopes(options.limits, SteadyClock(), completions, options.idle_timeout) {}

  // The port of a named scope.
  struct Port {
    std::shared_ptr<TcpStoreScope> scope;
    std::unique_ptr<Listener> listener;
  };

  const TcpStoreServerOptions options;
  // Limits the lines about closed connections.
  LogLimiter closed_log;
  TcpStoreFlow flow;

  // Lock order: `mu`, then that of `flow`, then those of the loops.
  mutable absl::Mutex mu;
  // Run by TcpStoreWorker::RunCompletions, before the lock is released.
  Completions completions ABSL_GUARDED_BY(mu);
  // Workers with ended waits that they have not been told of.
  std::vector<TcpStoreWorker*> to_wake ABSL_GUARDED_BY(mu);
  TcpStoreScopes scopes ABSL_GUARDED_BY(mu);
  absl::btree_map<std::string, Port> ports ABSL_GUARDED_BY(mu);
  uint64_t last_client ABSL_GUARDED_BY(mu) = 0;
  // The addresses of the clients.
  absl::flat_hash_map<TcpStoreClient, std::string> peers ABSL_GUARDED_BY(mu);
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_SHARED_H_
