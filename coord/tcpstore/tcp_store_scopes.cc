// SPDX-License-Identifier: Apache-2.0
// When scopes begin and end.
#include "coord/tcpstore/tcp_store_scopes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::coord {

absl::StatusOr<std::shared_ptr<TcpStoreScope>> TcpStoreScopes::Open(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("a scope needs a name");
  std::shared_ptr<TcpStoreScope> scope = Find(name);
  if (scope == nullptr) {
    if (scopes_.size() >= kMaxScopes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", scopes_.size(),
                       " scopes, the limit; each job opens one, and "
                       "closes it at its end"));
    }
    scope = std::make_shared<TcpStoreScope>(std::string(name), options_, clock_, completions_);
    scopes_.emplace(name, scope);
  }
  ++scope->holders;
  return scope;
}

void TcpStoreScopes::Close(const std::shared_ptr<TcpStoreScope>& scope) {
  --scope->holders;
  EndIfUnused(scope);
}

std::shared_ptr<TcpStoreScope> TcpStoreScopes::Shared() {
  Advance();
  std::shared_ptr<TcpStoreScope>& shared = scopes_[""];
  if (shared == nullptr) {
    shared = std::make_shared<TcpStoreScope>("", options_, clock_, completions_);
  }
  return shared;
}

void TcpStoreScopes::Detach(const std::shared_ptr<TcpStoreScope>& scope) {
  if (--scope->clients == 0) scope->since = clock_.Now();
  EndIfUnused(scope);
}

void TcpStoreScopes::EndIfUnused(const std::shared_ptr<TcpStoreScope>& scope) {
  if (scope->clients > 0 || scope->holders > 0) return;
  if (scope->name.empty() && clock_.Now() < scope->since + idle_timeout_) return;
  // It may have ended before, and another begun under its name.
  const auto found = scopes_.find(scope->name);
  if (found != scopes_.end() && found->second == scope) scopes_.erase(found);
}

std::shared_ptr<TcpStoreScope> TcpStoreScopes::Find(absl::string_view name) const {
  const auto found = scopes_.find(name);
  return found == scopes_.end() ? nullptr : found->second;
}

void TcpStoreScopes::ForEach(absl::FunctionRef<void(const TcpStoreScope&)> visit) const {
  for (const auto& [name, scope] : scopes_) visit(*scope);
}

absl::Time TcpStoreScopes::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, scope] : scopes_) {
    next = std::min(next, scope->store.NextDeadline());
    if (name.empty() && scope->clients == 0) next = std::min(next, scope->since + idle_timeout_);
  }
  return next;
}

void TcpStoreScopes::Advance() {
  for (const auto& [name, scope] : scopes_) scope->store.Advance();
  if (const std::shared_ptr<TcpStoreScope> shared = Find(""); shared != nullptr) {
    EndIfUnused(shared);
  }
}

void TcpStoreScopes::AddTableSizes(TableSizes& sizes) const {
  sizes["tcpstore.scopes"] += scopes_.size();
  for (const auto& [name, scope] : scopes_) scope->store.AddTableSizes(sizes);
}

}  // namespace ferry::coord
