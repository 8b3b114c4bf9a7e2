// SPDX-License-Identifier: Apache-2.0
// TcpStoreWorker: a thread of a TcpStoreServer, which serves some of its connections.
#ifndef FERRY_COORD_SERVER_TCP_STORE_WORKER_H_
#define FERRY_COORD_SERVER_TCP_STORE_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"

#include "coord/server/tcp_store_shared.h"
#include "net/socket_loop.h"

namespace ferry::coord {

class TcpStoreConnection;

// A connection stays on one worker, which receives, executes and replies without another thread,
// and holds the lock of TcpStoreShared only while it uses the stores. A request may end the waits
// of connections on other workers; these are woken to write the replies.
//
// "The lock" is that of TcpStoreShared. The compiler does not check it here, since callers hold it
// by another name.
//
// Except for loop(), Stop and AddEndedWait, all methods are called on the loop, or while it is
// paused.
class TcpStoreWorker final {
 public:
  // `shared` outlives it. `number`: less than the number of threads in its options.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<TcpStoreWorker>> Create(TcpStoreShared& shared,
                                                                size_t number);
  // Closes the connections and ends the thread. A second call does nothing. Not on the loop.
  void Stop() { loop_->End(); }

  SocketLoop& loop() { return *loop_; }

  // A wait of one of its connections has ended. On any worker's loop. REQUIRES: the lock is held.
  void AddEndedWait(std::shared_ptr<TcpStoreConnection> connection, uint64_t wait);
  // Runs the callbacks of ended waits. Called whenever stores have been used, before the lock is
  // released. FlushReady must follow. REQUIRES: the lock is held.
  void RunCompletions();
  // Replies to the ended waits of its connections, and wakes the workers of the others.
  void FlushReady() ABSL_LOCKS_EXCLUDED(shared_.mu);

  // Adds the replies to ended waits to the output of their connections, which are about to be
  // exported. If they are not, FlushReady writes them later. REQUIRES: paused, the lock is held.
  void SettleWaits();

  // The connection is open, or is closed.
  void AddConnection(TcpStoreConnection& connection) { connections_.insert(&connection); }
  void RemoveConnection(TcpStoreConnection& connection) { connections_.erase(&connection); }
  const absl::flat_hash_set<TcpStoreConnection*>& connections() const { return connections_; }
  // The connection has unread replies, or none any more.
  void AddWriting(TcpStoreConnection& connection);
  void RemoveWriting(TcpStoreConnection& connection) { writing_.erase(&connection); }

 private:
  struct EndedWait {
    std::shared_ptr<TcpStoreConnection> connection;
    uint64_t wait = 0;
  };

  TcpStoreWorker(TcpStoreShared& shared, size_t number) : shared_(shared), number_(number) {}

  void TakeEndedWaits() ABSL_LOCKS_EXCLUDED(shared_.mu);
  // Counts the memory of replaced values periodically, while there are unread replies.
  void CountReplacedValues();
  void CountLater();

  TcpStoreShared& shared_;
  const size_t number_;
  // Constant after Create.
  std::shared_ptr<SocketLoop> loop_;

  std::vector<EndedWait> ended_ ABSL_GUARDED_BY(shared_.mu);

  // Loop only.
  std::vector<EndedWait> ready_;
  bool is_flushing_ = false;
  std::vector<TcpStoreWorker*> to_wake_;
  absl::flat_hash_set<TcpStoreConnection*> connections_;
  // Those with unread replies.
  absl::flat_hash_set<TcpStoreConnection*> writing_;
  bool will_count_ = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_WORKER_H_
