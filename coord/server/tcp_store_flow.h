// SPDX-License-Identifier: Apache-2.0
// TcpStoreFlow: applies the memory budget of store clients to connections on several loops.
#ifndef FERRY_COORD_SERVER_TCP_STORE_FLOW_H_
#define FERRY_COORD_SERVER_TCP_STORE_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "coord/tcpstore/tcp_store.h"
#include "coord/tcpstore/tcp_store_budget.h"
#include "net/socket_loop.h"

namespace ferry::coord {

// A connection whose memory is limited. Its methods are called on its loop.
class TcpStoreFlowMember {
 public:
  virtual ~TcpStoreFlowMember() = default;
  // MayReceive has returned false; now it would return true.
  virtual void Resume() = 0;
  // Others wait for the memory that it holds: closes it.
  virtual void CloseStalled(size_t held_bytes) = 0;
};

// Thread-safe. See TcpStoreBudget.
class TcpStoreFlow final {
 public:
  // The number of references to each value from replies that are not written yet.
  using ReplyCounts = absl::flat_hash_map<const std::string*, long>;

  // `threads` is the number of callers of ShareReplyCounts.
  TcpStoreFlow(size_t max_bytes, size_t threads)
      : max_bytes_(max_bytes), budget_(max_bytes), reply_counts_(threads) {}

  // Counts the connection, or updates its state: see TcpStoreBudget::Update. `loop` outlives this.
  void Update(TcpStoreClient client, SocketLoop& loop, std::weak_ptr<TcpStoreFlowMember> member,
              size_t held_bytes, uint64_t moved_bytes, uint64_t requests,
              TcpStoreBudget::Phase phase) ABSL_LOCKS_EXCLUDED(mu_);
  // The connection holds little, or is closed.
  void Remove(TcpStoreClient client) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns false if the connection is paused until Resume.
  bool MayReceive(TcpStoreClient client) ABSL_LOCKS_EXCLUDED(mu_);
  // See TcpStoreBudget::EndPeriod.
  void EndPeriod() ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces the counts of a thread, and returns the sums over all threads for their values. The
  // counts of other threads may be those of a moment ago.
  ReplyCounts ShareReplyCounts(size_t thread, ReplyCounts counts) ABSL_LOCKS_EXCLUDED(mu_);

  size_t held_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t max_bytes() const { return max_bytes_; }

 private:
  struct Counted {
    SocketLoop* loop = nullptr;
    std::weak_ptr<TcpStoreFlowMember> member;
  };

  void ResumeMembers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t max_bytes_;
  mutable absl::Mutex mu_;
  TcpStoreBudget budget_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<TcpStoreClient, Counted> counted_ ABSL_GUARDED_BY(mu_);
  // Keyed by thread.
  std::vector<ReplyCounts> reply_counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_FLOW_H_
