// SPDX-License-Identifier: Apache-2.0
// Reference counting of scopes per session.
#include "coord/server/tcp_store_holds.h"

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {

absl::StatusOr<int> TcpStoreHolds::Open(absl::string_view scope) {
  if (ports_.server == nullptr) {
    return absl::UnimplementedError("this coordinator serves no PyTorch stores");
  }
  absl::MutexLock lock(&mu_);
  if (is_over_) return absl::AbortedError("the session has ended");
  FERRY_ASSIGN_OR_RETURN(const int port, ports_.server->OpenScope(scope, ports_.open));
  // A session has at most one reference to a scope.
  if (!scopes_.emplace(scope).second) ports_.server->CloseScope(scope).IgnoreError();
  return port;
}

absl::Status TcpStoreHolds::Close(absl::string_view scope) {
  absl::MutexLock lock(&mu_);
  const auto held = scopes_.find(scope);
  if (held == scopes_.end()) {
    return absl::NotFoundError(
        absl::StrCat("this session does not hold the store with the scope ", Quoted(scope)));
  }
  scopes_.erase(held);
  return ports_.server->CloseScope(scope);
}

void TcpStoreHolds::End() {
  absl::MutexLock lock(&mu_);
  is_over_ = true;
  for (const std::string& scope : scopes_) ports_.server->CloseScope(scope).IgnoreError();
  scopes_.clear();
}

}  // namespace ferry::coord
