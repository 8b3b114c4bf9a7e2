// SPDX-License-Identifier: Apache-2.0
// TcpStoreBudget: the memory limit that all clients of PyTorch's stores share, by flow control.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_BUDGET_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "coord/tcpstore/tcp_store.h"

namespace ferry::coord {

// Not thread-safe. Pure: its owner reports the memory that the server holds for each client (its
// incomplete requests, unread replies and waits), and pauses and closes the connections.
//
// A client of at most kUncountedBytes is not counted, never paused and never closed, so that
// clients that wait for a few keys or exchange small values are not affected by others. Of the
// larger ones, any number may send requests until half of the limit is held. Above that they send
// one at a time, in FIFO order, each until its request is complete; above three quarters none
// starts, since a request of the largest size, a quarter of the limit, would not fit. A paused
// client is not closed for not sending. A client that could make progress and does not, because it
// stops sending or reading, is closed if others are blocked by it, those that hold most first.
// Waits are closed last, and only if the limit stays three quarters full for a period.
class TcpStoreBudget final {
 public:
  static constexpr size_t kUncountedBytes = size_t{16} << 10;
  // A client that transfers less than this in a period makes no progress.
  static constexpr uint64_t kMinBytesPerPeriod = uint64_t{256} << 10;

  // The next action of the client.
  enum class Phase {
    // Send the rest of a request.
    kSending,
    // Read its replies, which it can even while it is paused.
    kReading,
    // Nothing: its request waits for keys that other clients set.
    kWaiting,
  };

  struct Closed {
    TcpStoreClient client;
    size_t held_bytes = 0;
    Phase phase = Phase::kSending;
  };

  explicit TcpStoreBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Reports the state of a client.
  //   held_bytes: see above.
  //   moved_bytes: bytes received from it and written to it, since it connected.
  //   requests: the number of requests executed, since it connected.
  void Update(TcpStoreClient client, size_t held_bytes, uint64_t moved_bytes, uint64_t requests,
              Phase phase);
  void Remove(TcpStoreClient client);
  // Returns true if the server may receive more from the client. If not, the client is paused until
  // TakeResumed returns it.
  bool MayReceive(TcpStoreClient client);
  std::vector<TcpStoreClient> TakeResumed();
  // Ends a period. The caller closes the connections of the returned clients, and calls Remove for
  // each.
  std::vector<Closed> EndPeriod();

  // The bytes held for counted clients.
  size_t held_bytes() const { return held_bytes_; }
  size_t max_bytes() const { return max_bytes_; }
  // The number of counted clients, and of the paused ones among them.
  size_t client_count() const { return clients_.size(); }
  size_t paused_count() const { return paused_count_; }

 private:
  struct Client {
    size_t held_bytes = 0;
    uint64_t moved_bytes = 0;
    uint64_t requests = 0;
    Phase phase = Phase::kSending;
    bool is_paused = false;
    // It was counted, and not kept from sending, when the last period ended; and its moved_bytes
    // then.
    bool is_old = false;
    uint64_t moved_bytes_before = 0;
  };

  bool is_scarce() const { return held_bytes_ >= max_bytes_ / 2; }
  // The largest request would not fit.
  bool is_full() const { return held_bytes_ >= max_bytes_ - max_bytes_ / 4; }
  void Resume(TcpStoreClient id, Client& client, std::vector<TcpStoreClient>& resumed);

  const size_t max_bytes_;
  absl::flat_hash_map<TcpStoreClient, Client> clients_;
  size_t held_bytes_ = 0;
  // The paused clients in FIFO order, and stale entries of others, which TakeResumed skips.
  std::deque<TcpStoreClient> queue_;
  size_t paused_count_ = 0;
  // The one client that may send while memory is scarce.
  std::optional<TcpStoreClient> receiver_;
  // receiver_ has finished a request, or disconnected, in this period.
  bool has_advanced_ = false;
  // is_full() would have held after the closings of the last period.
  bool was_full_ = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_BUDGET_H_
