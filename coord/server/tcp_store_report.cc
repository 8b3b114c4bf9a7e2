// SPDX-License-Identifier: Apache-2.0
// Reads the stores in parts.
#include "coord/server/tcp_store_report.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/text.h"

namespace ferry::coord {
namespace {

// The lock is released after this many entries or waits.
constexpr size_t kEntriesInPart = 1024;
constexpr size_t kWaitsInPart = 32;

TcpStoreScopeReport ReportScope(const TcpStoreShared& shared, TcpStoreScope& scope,
                                size_t max_waits, size_t& waits_left) {
  TcpStoreScopeReport report{.name = scope.name};
  std::vector<TcpStoreWaitInfo> waits;
  {
    absl::MutexLock lock(&shared.mu);
    report.clients = scope.clients;
    report.keys = scope.store.key_count();
    report.bytes = scope.store.stored_bytes();
    report.wait_count = scope.store.wait_count();
    const auto port = shared.ports.find(scope.name);
    if (port != shared.ports.end()) report.port = port->second.listener->port();
  }
  for (bool is_over = report.wait_count == 0; !is_over;) {
    const size_t count = std::min(kWaitsInPart, waits_left);
    const uint64_t after = waits.empty() ? 0 : waits.back().number;
    absl::MutexLock lock(&shared.mu);
    std::vector<TcpStoreWaitInfo> part = scope.store.Waits(after, count, kMaxMissingKeysOfWait);
    waits_left -= part.size();
    is_over = part.size() < kWaitsInPart;
    for (TcpStoreWaitInfo& wait : part) {
      if (report.waits.size() < max_waits) {
        const auto peer = shared.peers.find(wait.client);
        report.waits.push_back({peer == shared.peers.end() ? "" : peer->second, wait});
      }
      waits.push_back(std::move(wait));
    }
  }
  const auto for_each_key = [&shared, &scope](absl::string_view prefix,
                                              absl::FunctionRef<bool(absl::string_view)> visit) {
    std::optional<std::string> last;
    for (bool is_over = false; !is_over;) {
      std::vector<std::string> keys;
      {
        absl::MutexLock lock(&shared.mu);
        scope.store.ForEachEntry(prefix, last, [&](absl::string_view key, const StoreValue&) {
          keys.emplace_back(key);
          return keys.size() < kEntriesInPart;
        });
      }
      is_over = keys.size() < kEntriesInPart;
      for (const std::string& key : keys) {
        if (!visit(key)) return;
      }
      if (!keys.empty()) last = std::move(keys.back());
    }
  };
  report.missing = MissingTcpStoreKeys(waits, for_each_key, max_waits);
  return report;
}

}  // namespace

std::vector<TcpStoreScopeReport> ReportTcpStores(const TcpStoreShared& shared, size_t max_waits) {
  std::vector<std::shared_ptr<TcpStoreScope>> scopes;
  {
    absl::MutexLock lock(&shared.mu);
    scopes = shared.scopes.All();
  }
  size_t waits_left = kMaxTcpStoreWaitsRead;
  std::vector<TcpStoreScopeReport> reports;
  reports.reserve(scopes.size());
  for (const std::shared_ptr<TcpStoreScope>& scope : scopes) {
    reports.push_back(ReportScope(shared, *scope, max_waits, waits_left));
  }
  return reports;
}

absl::StatusOr<std::vector<StoreEntry>> ListTcpStore(const TcpStoreShared& shared,
                                                     absl::string_view scope,
                                                     absl::string_view prefix, size_t limit) {
  std::shared_ptr<TcpStoreScope> found;
  {
    absl::MutexLock lock(&shared.mu);
    found = shared.scopes.Find(scope);
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        scope.empty() ? "the store of the coordinator's port has no clients"
                      : absl::StrCat("there is no store with the scope ", Quoted(scope)));
  }
  std::vector<StoreEntry> entries;
  const size_t most = limit == 0 ? std::numeric_limits<size_t>::max() : limit;
  for (size_t end = 0; entries.size() == end && end < most;) {
    end = entries.size() + std::min(kEntriesInPart, most - entries.size());
    std::optional<absl::string_view> last;
    if (!entries.empty()) last = entries.back().key;
    absl::MutexLock lock(&shared.mu);
    found->store.ForEachEntry(prefix, last, [&](absl::string_view key, const StoreValue& value) {
      entries.push_back({std::string(key), value, 0});
      return entries.size() < end;
    });
  }
  return entries;
}

}  // namespace ferry::coord
