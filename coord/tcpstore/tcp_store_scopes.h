// SPDX-License-Identifier: Apache-2.0
// TcpStoreScopes: the separate key spaces of jobs and of their attempts.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_SCOPES_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_SCOPES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/options.h"
#include "coord/tcpstore/tcp_store.h"

namespace ferry::coord {

// The name under which tools show the scope of the coordinator's port, whose own is empty.
inline constexpr absl::string_view kSharedTcpStoreScope = "shared";

// A key space. Its keys carry neither a job nor an attempt, so that a second job in it would read
// the addresses of the first.
struct TcpStoreScope {
  TcpStoreScope(std::string scope_name, const CoordinatorOptions& options, const Clock& clock,
                Completions& completions)
      : name(std::move(scope_name)), since(clock.Now()), store(options, clock, completions) {}

  // Empty: that of the coordinator's own port.
  const std::string name;
  // When it began, or the last client left.
  absl::Time since;
  // The number of connected clients, and of holders (Open).
  size_t clients = 0;
  size_t holders = 0;
  TcpStore store;
};

// Not thread-safe. Pure, as TcpStore.
//
// A named scope lives while it is held or has clients. The scope of the coordinator's port begins
// with the first client, and ends when there has been none for `idle_timeout`: that is where one
// job ends and the next begins. A job that begins earlier is told by its first request: see
// TcpStore::NoteAllLeft.
class TcpStoreScopes final {
 public:
  static constexpr size_t kMaxScopes = 4096;
  static constexpr size_t kMaxNameBytes = 256;

  // `options`, `clock` and `completions` outlive it.
  TcpStoreScopes(const CoordinatorOptions& options, const Clock& clock, Completions& completions,
                 absl::Duration idle_timeout)
      : options_(options), clock_(clock), completions_(completions), idle_timeout_(idle_timeout) {}

  // Returns OK if a scope may have this name: one to kMaxNameBytes bytes without control
  // characters, but not kSharedTcpStoreScope, with which tools mean another one.
  //   Errors: INVALID_ARGUMENT.
  static absl::Status CheckName(absl::string_view name);

  // Holds the scope `name`, which begins if it does not exist.
  //   Errors: as CheckName; RESOURCE_EXHAUSTED for too many scopes.
  absl::StatusOr<std::shared_ptr<TcpStoreScope>> Open(absl::string_view name);
  // Ends one Open. A scope that is neither held nor has clients ends at once.
  void Close(const std::shared_ptr<TcpStoreScope>& scope);

  // Returns the scope of the coordinator's port, for Attach.
  std::shared_ptr<TcpStoreScope> Shared();
  // A client uses the scope until Detach.
  void Attach(const std::shared_ptr<TcpStoreScope>& scope) { ++scope->clients; }
  void Detach(const std::shared_ptr<TcpStoreScope>& scope);

  // Null if there is none.
  std::shared_ptr<TcpStoreScope> Find(absl::string_view name) const;
  std::vector<std::shared_ptr<TcpStoreScope>> All() const;

  absl::Time NextDeadline() const;
  void Advance();
  // "tcpstore...."
  void AddTableSizes(TableSizes& sizes) const;

 private:
  void EndIfUnused(const std::shared_ptr<TcpStoreScope>& scope);

  const CoordinatorOptions& options_;
  const Clock& clock_;
  Completions& completions_;
  const absl::Duration idle_timeout_;
  absl::btree_map<std::string, std::shared_ptr<TcpStoreScope>> scopes_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_SCOPES_H_
