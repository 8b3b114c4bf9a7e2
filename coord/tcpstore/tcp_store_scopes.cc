// SPDX-License-Identifier: Apache-2.0
// The lifetime of scopes.
#include "coord/tcpstore/tcp_store_scopes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {

absl::Status TcpStoreScopes::CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("the name of a scope is empty");
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a scope has ", name.size(),
                                                   " bytes, over the limit of ", kMaxNameBytes));
  }
  if (name == kSharedTcpStoreScope) {
    return absl::InvalidArgumentError(
        absl::StrCat("the scope name ", Quoted(name),
                     " is reserved for the coordinator's own port; choose another"));
  }
  if (std::any_of(name.begin(), name.end(), absl::ascii_iscntrl)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the scope name ", Quoted(name), " contains a control character"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TcpStoreScope>> TcpStoreScopes::Open(absl::string_view name) {
  FERRY_RETURN_IF_ERROR(CheckName(name));
  std::shared_ptr<TcpStoreScope> scope = Find(name);
  if (scope == nullptr) {
    if (scopes_.size() >= kMaxScopes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", scopes_.size(),
                       " scopes, which is the limit; close those of jobs that have ended"));
    }
    scope = std::make_shared<TcpStoreScope>(std::string(name), options_, clock_, completions_);
    scopes_.emplace(name, scope);
  }
  ++scope->holders;
  return scope;
}

absl::StatusOr<std::shared_ptr<TcpStoreScope>> TcpStoreScopes::Restore(absl::string_view name,
                                                                       absl::Time since) {
  if (!name.empty()) FERRY_RETURN_IF_ERROR(CheckName(name));
  if (scopes_.size() >= kMaxScopes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", scopes_.size(), " scopes, which is the limit"));
  }
  std::shared_ptr<TcpStoreScope>& scope = scopes_[name];
  if (scope != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("scope ", Quoted(name), " occurs twice"));
  }
  scope = std::make_shared<TcpStoreScope>(std::string(name), options_, clock_, completions_);
  scope->since = since;
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
  if (--scope->clients == 0) {
    scope->since = clock_.Now();
    // A named scope belongs to one job, which may disconnect and reconnect at any time.
    if (scope->name.empty()) scope->store.MarkIdle();
  }
  EndIfUnused(scope);
}

void TcpStoreScopes::EndIfUnused(const std::shared_ptr<TcpStoreScope>& scope) {
  if (scope->clients > 0 || scope->holders > 0) return;
  if (scope->name.empty() && clock_.Now() < scope->since + idle_timeout_) return;
  // It may have been removed already, and another scope of the same name created.
  const auto found = scopes_.find(scope->name);
  if (found != scopes_.end() && found->second == scope) scopes_.erase(found);
}

std::shared_ptr<TcpStoreScope> TcpStoreScopes::Find(absl::string_view name) const {
  const auto found = scopes_.find(name);
  return found == scopes_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<TcpStoreScope>> TcpStoreScopes::All() const {
  std::vector<std::shared_ptr<TcpStoreScope>> scopes;
  scopes.reserve(scopes_.size());
  for (const auto& [name, scope] : scopes_) scopes.push_back(scope);
  return scopes;
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
