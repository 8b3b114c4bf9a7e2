// SPDX-License-Identifier: Apache-2.0
// Reports on PyTorch's stores, for `ferry status` and `ferry kv`.
#ifndef FERRY_COORD_SERVER_TCP_STORE_REPORT_H_
#define FERRY_COORD_SERVER_TCP_STORE_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coord/core/store.h"
#include "coord/server/tcp_store_shared.h"
#include "coord/tcpstore/tcp_store.h"
#include "coord/tcpstore/tcp_store_missing.h"

namespace ferry::coord {

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

// Both functions take the lock of `shared` repeatedly for short times, so the result is not a
// snapshot. They must not be called on the loop of a worker.

// Returns all scopes, each with at most `max_waits` waits, oldest first, and missing keys. At most
// kMaxTcpStoreWaitsRead waits of all scopes together are read.
inline constexpr size_t kMaxTcpStoreWaitsRead = 8192;
std::vector<TcpStoreScopeReport> ReportTcpStores(const TcpStoreShared& shared, size_t max_waits);

// Returns the entries of a scope whose keys begin with `prefix`, ordered by key; at most `limit`,
// where 0 means no limit.
//   Errors: NOT_FOUND when there is no such scope.
absl::StatusOr<std::vector<StoreEntry>> ListTcpStore(const TcpStoreShared& shared,
                                                     absl::string_view scope,
                                                     absl::string_view prefix, size_t limit);

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_REPORT_H_
