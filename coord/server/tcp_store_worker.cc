// SPDX-License-Identifier: Apache-2.0
// Ended waits, and the memory of replaced values.
#include "coord/server/tcp_store_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/status_macros.h"
#include "coord/core/completions.h"
#include "coord/server/tcp_store_connection.h"

namespace ferry::coord {
namespace {

constexpr absl::Duration kCountPeriod = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<TcpStoreWorker>> TcpStoreWorker::Create(TcpStoreShared& shared,
                                                                       size_t number) {
  auto worker = std::unique_ptr<TcpStoreWorker>(new TcpStoreWorker(shared, number));
  std::string name = "ferry-tcpstore";
  if (shared.options.threads > 1) absl::StrAppend(&name, number);
  FERRY_ASSIGN_OR_RETURN(worker->loop_, SocketLoop::Create(std::move(name)));
  return worker;
}

void TcpStoreWorker::AddEndedWait(std::shared_ptr<TcpStoreConnection> connection, uint64_t wait) {
  shared_.mu.AssertHeld();
  if (ended_.empty()) shared_.to_wake.push_back(this);
  ended_.push_back({std::move(connection), wait});
}

void TcpStoreWorker::RunCompletions() {
  shared_.mu.AssertHeld();
  while (!shared_.completions.empty()) {
    for (Completion& completion : shared_.completions.Take()) std::move(completion)();
  }
  if (shared_.to_wake.empty()) return;
  for (TcpStoreWorker* const worker : shared_.to_wake) {
    if (worker != this) to_wake_.push_back(worker);
  }
  shared_.to_wake.clear();
  for (EndedWait& ended : ended_) ready_.push_back(std::move(ended));
  ended_.clear();
}

void TcpStoreWorker::TakeEndedWaits() {
  {
    absl::MutexLock lock(&shared_.mu);
    for (EndedWait& ended : ended_) ready_.push_back(std::move(ended));
    ended_.clear();
  }
  FlushReady();
}

void TcpStoreWorker::FlushReady() {
  if (!to_wake_.empty()) {
    for (TcpStoreWorker* const worker : std::exchange(to_wake_, {})) {
      worker->loop_->Post([worker] { worker->TakeEndedWaits(); });
    }
  }
  // Not recursive: a chain of clients that wait for each other's keys may have any length.
  if (ready_.empty() || std::exchange(is_flushing_, true)) return;
  while (!ready_.empty()) {
    for (const EndedWait& ended : std::exchange(ready_, {})) ended.connection->EndWait(ended.wait);
  }
  is_flushing_ = false;
}

void TcpStoreWorker::SettleWaits() {
  shared_.mu.AssertHeld();
  for (const EndedWait& ended : ended_) ended.connection->SettleWait(ended.wait);
  for (const EndedWait& ended : ready_) ended.connection->SettleWait(ended.wait);
}

void TcpStoreWorker::AddWriting(TcpStoreConnection& connection) {
  writing_.insert(&connection);
  CountLater();
}

void TcpStoreWorker::CountLater() {
  if (std::exchange(will_count_, true)) return;
  loop_->PostAfter(kCountPeriod, [this] {
    will_count_ = false;
    CountReplacedValues();
  });
}

// A value that a reply shares with the store costs no memory of its own until the store replaces or
// deletes it.
void TcpStoreWorker::CountReplacedValues() {
  TcpStoreFlow::ReplyCounts counts;
  for (const TcpStoreConnection* const connection : writing_) {
    connection->ForEachShared([&counts](const StoreValue& value) { ++counts[value.get()]; });
  }
  counts = shared_.flow.ShareReplyCounts(number_, std::move(counts));
  // SetReplacedBytes may change writing_.
  for (TcpStoreConnection* const connection :
       std::vector<TcpStoreConnection*>(writing_.begin(), writing_.end())) {
    size_t bytes = 0;
    connection->ForEachShared([&](const StoreValue& value) {
      const long in_replies = counts.find(value.get())->second;
      // The store holds no reference.
      if (value.use_count() <= in_replies) bytes += value->size() / static_cast<size_t>(in_replies);
    });
    connection->SetReplacedBytes(bytes);
  }
  if (!writing_.empty()) CountLater();
}

}  // namespace ferry::coord
