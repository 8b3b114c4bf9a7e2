// SPDX-License-Identifier: Apache-2.0
// TcpStoreScopes: separate key spaces for jobs and for the rounds of elastic jobs.
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

// The name by which tools show the scope of the coordinator's port, whose actual name is empty.
inline constexpr absl::string_view kSharedTcpStoreScope = "shared";

// A key space. PyTorch's keys identify neither the job nor its attempt, so that a second job in the
// same key space would read the addresses of the first.
struct TcpStoreScope {
  TcpStoreScope(std::string scope_name, const CoordinatorOptions& options, const Clock& clock,
                Completions& completions)
      : name(std::move(scope_name)), since(clock.Now()), store(options, clock, completions) {}

  // Empty for the scope of the coordinator's own port.
  const std::string name;
  // When it was created, or the last client disconnected.
  absl::Time since;
  // The number of connected clients, and of calls of Open without Close.
  size_t clients = 0;
  size_t holders = 0;
  TcpStore store;
};

// Not thread-safe. Pure, as TcpStore.
//
// A named scope is reference-counted, by Open and by its clients. The scope of the coordinator's
// port is created with the first client, and removed when there has been none for `idle_timeout`,
// which separates consecutive jobs. A job that begins earlier is detected by its first request: see
// TcpStore::MarkIdle.
class TcpStoreScopes final {
 public:
  static constexpr size_t kMaxScopes = 4096;
  static constexpr size_t kMaxNameBytes = 256;

  // `options`, `clock` and `completions` outlive it.
  TcpStoreScopes(const CoordinatorOptions& options, const Clock& clock, Completions& completions,
                 absl::Duration idle_timeout)
      : options_(options), clock_(clock), completions_(completions), idle_timeout_(idle_timeout) {}

  // Returns OK for a valid name: 1 to kMaxNameBytes bytes without control characters, and not
  // kSharedTcpStoreScope, which is reserved.
  //   Errors: INVALID_ARGUMENT.
  static absl::Status CheckName(absl::string_view name);

  // Adds a reference to the scope `name`, which is created if it does not exist.
  //   Errors: as CheckName; RESOURCE_EXHAUSTED for too many scopes.
  absl::StatusOr<std::shared_ptr<TcpStoreScope>> Open(absl::string_view name);
  // Releases a reference of Open. A scope without references and clients is removed at once.
  void Close(const std::shared_ptr<TcpStoreScope>& scope);

  // Adds the scope `name`, empty for that of the coordinator's port, without references and
  // clients. Call Detach or Close afterwards, if only after Attach or Open.
  //   Errors: as Open; ALREADY_EXISTS.
  absl::StatusOr<std::shared_ptr<TcpStoreScope>> Restore(absl::string_view name, absl::Time since);

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
  // Adds the sizes "tcpstore.*".
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
