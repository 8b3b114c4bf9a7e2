// SPDX-License-Identifier: Apache-2.0
// TcpStoreBudget: which clients of PyTorch's stores may go on while they hold much memory together.
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

// Not thread-safe. Pure: its owner tells what each client holds (requests that have not ended,
// replies that were not read, waits), and stops and closes their connections.
//
// A client that holds at most kFreeBytes is not counted, never stopped and never closed: those that
// wait for a few keys, or exchange small values, are not affected by what others do. Of the larger
// ones any number may receive until half of the limit is held. From then on one may at a time,
// until its request has ended, in the order in which they came to it; and none when the largest
// request, a quarter of the limit, would not fit. Clients that are stopped so are not to blame for
// it. But one that may go on and does not, because it stays silent or does not read, is closed when
// it stands in the way: the largest ones first.
class TcpStoreBudget final {
 public:
  static constexpr size_t kFreeBytes = size_t{16} << 10;
  // A client that moves less in a period than this does not go on.
  static constexpr uint64_t kLeastBytesMoved = uint64_t{256} << 10;

  // The state of a client.
  enum class Phase {
    // It sends a request.
    kSending,
    // It has replies to read. That it was stopped is no excuse for not reading them.
    kReading,
    // Its request is to be answered when others have set keys.
    kWaiting,
  };

  struct Closed {
    TcpStoreClient client;
    size_t held_bytes = 0;
    Phase phase = Phase::kSending;
  };

  explicit TcpStoreBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  //   held_bytes: see above.
  //   moved_bytes: all that were received from it and written to it so far.
  //   requests: the number of requests that have ended.
  void Update(TcpStoreClient client, size_t held_bytes, uint64_t moved_bytes, uint64_t requests,
              Phase phase);
  void Remove(TcpStoreClient client);
  // Returns true if the client may receive more. If not, TakeResumed returns it when it may.
  bool MayReceive(TcpStoreClient client);
  std::vector<TcpStoreClient> TakeResumed();
  // Ends a period. Returns the clients whose connections are to be closed, and Remove called.
  std::vector<Closed> EndPeriod();

  // The bytes that the counted clients hold.
  size_t held_bytes() const { return held_bytes_; }
  size_t max_bytes() const { return max_bytes_; }
  // The number of counted clients, and of those that are stopped.
  size_t client_count() const { return clients_.size(); }
  size_t stopped_count() const { return stopped_count_; }

 private:
  struct Client {
    size_t held_bytes = 0;
    uint64_t moved_bytes = 0;
    uint64_t requests = 0;
    Phase phase = Phase::kSending;
    bool is_stopped = false;
    // It was counted when the last period ended, and had moved so much then.
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
  // Those that are stopped, in order, and some that no longer are.
  std::deque<TcpStoreClient> queue_;
  size_t stopped_count_ = 0;
  // The one that may receive while memory is scarce.
  std::optional<TcpStoreClient> receiver_;
  // It has changed in this period.
  bool has_advanced_ = false;
  // It was full when the last period ended.
  bool was_full_ = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_BUDGET_H_
