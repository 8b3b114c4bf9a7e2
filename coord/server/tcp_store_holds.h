// SPDX-License-Identifier: Apache-2.0
// TcpStoreHolds: the scopes of PyTorch stores that a session of ferry.v1.Control keeps open.
#ifndef FERRY_COORD_SERVER_TCP_STORE_HOLDS_H_
#define FERRY_COORD_SERVER_TCP_STORE_HOLDS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "coord/server/tcp_store_server.h"
#include "net/listener.h"

namespace ferry::coord {

// The server of the scopes, and how it opens their ports.
struct TcpStorePorts {
  // Null if the coordinator serves no PyTorch stores.
  TcpStoreServer* server = nullptr;
  // See TcpStoreServer::OpenScope.
  std::function<absl::StatusOr<std::unique_ptr<Listener>>()> open;
};

// Thread-safe. Lock order: mu_, then that of the TcpStoreServer.
class TcpStoreHolds final {
 public:
  // `ports` outlives it, and is not read by the constructor.
  explicit TcpStoreHolds(const TcpStorePorts& ports) : ports_(ports) {}

  // Returns the port; see v1::OpenStore.
  absl::StatusOr<int> Open(absl::string_view scope) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Close(absl::string_view scope) ABSL_LOCKS_EXCLUDED(mu_);
  // Releases all scopes; a later Open fails with ABORTED.
  void End() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const TcpStorePorts& ports_;
  absl::Mutex mu_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  absl::btree_set<std::string> scopes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_HOLDS_H_
