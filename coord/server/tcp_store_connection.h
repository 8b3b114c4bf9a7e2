// SPDX-License-Identifier: Apache-2.0
// TcpStoreConnection: the socket of a PyTorch store client.
#ifndef FERRY_COORD_SERVER_TCP_STORE_CONNECTION_H_
#define FERRY_COORD_SERVER_TCP_STORE_CONNECTION_H_

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "base/unique_fd.h"
#include "coord/core/store.h"
#include "coord/server/handover_proto.h"
#include "coord/server/tcp_store_flow.h"
#include "coord/server/tcp_store_shared.h"
#include "coord/server/tcp_store_worker.h"
#include "coord/tcpstore/tcp_store_scopes.h"
#include "coord/tcpstore/tcp_store_session.h"
#include "net/loop.h"

namespace ferry::coord {

// All methods are called on the worker's loop, or while it is paused. The loop holds it until it is
// closed.
class TcpStoreConnection final : public LoopSource,
                                 public TcpStoreFlowMember,
                                 public std::enable_shared_from_this<TcpStoreConnection> {
 public:
  // `shared` and `worker` outlive it. `scope` has been attached for it, and is detached when it
  // closes.
  TcpStoreConnection(TcpStoreShared& shared, TcpStoreWorker& worker, UniqueFd connection,
                     std::shared_ptr<TcpStoreScope> scope)
      : shared_(shared),
        worker_(worker),
        connection_(std::move(connection)),
        scope_(std::move(scope)) {}

  // Begin is called first, once; then either Watch, or Restore and GoOnLater, which calls Watch.
  void Begin(TcpStoreClient client, std::string peer);
  void Watch() ABSL_LOCKS_EXCLUDED(shared_.mu);

  // For a hand-over. Restore is called between Begin and GoOnLater, which watches the connection
  // and continues it, on the loop.
  TcpStoreConnectionState Export() const;
  //   Errors: as TcpStoreSession::Restore.
  absl::Status Restore(TcpStoreConnectionState state);
  void GoOnLater();
  void Drop() ABSL_LOCKS_EXCLUDED(shared_.mu) { Close(absl::OkStatus()); }
  const std::shared_ptr<TcpStoreScope>& scope() const { return scope_; }
  const std::shared_ptr<TcpStoreSession>& session() const { return session_; }
  // A wait has ended, and the connection is to be exported: its reply is to be written. EndWait may
  // follow, if it is not.
  void SettleWait(uint64_t wait) {
    if (session_ != nullptr) session_->EndWait(wait);
  }

  // A wait has ended: replies, and executes requests that were received after it.
  void EndWait(uint64_t wait) ABSL_LOCKS_EXCLUDED(shared_.mu);

  void Resume() override;
  void CloseStalled(size_t held_bytes) override ABSL_LOCKS_EXCLUDED(shared_.mu);

  // Calls `visit` for each value that queued replies share with the store.
  void ForEachShared(absl::FunctionRef<void(const StoreValue&)> visit) const {
    session_->output().ForEachShared(visit);
  }
  // Sets its share of the values that only replies refer to any more.
  void SetReplacedBytes(size_t bytes);

 private:
  void OnReady(uint32_t events) override ABSL_LOCKS_EXCLUDED(shared_.mu);
  void OnLoopEnd() override;
  void Read() ABSL_LOCKS_EXCLUDED(shared_.mu);
  // Executes the requests in the unread bytes and `bytes`, and writes the replies. Returns false if
  // the connection has been closed.
  bool Consume(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(shared_.mu);
  bool CanConsume() const;
  // Stores the unconsumed bytes. `rest` is the end of unread_, or elsewhere if that is empty.
  void Keep(absl::string_view rest);
  void Continue() ABSL_LOCKS_EXCLUDED(shared_.mu);
  void ContinueLater();
  // Writes until the kernel accepts no more. Returns false if the connection has been closed.
  bool Flush() ABSL_LOCKS_EXCLUDED(shared_.mu);
  // Updates the watched events and the flow control, after each read or write.
  void UpdateWatch();
  void UpdateFlow();
  void ResolveLater();
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(shared_.mu);

  TcpStoreShared& shared_;
  TcpStoreWorker& worker_;
  UniqueFd connection_;
  Loop::SourceId source_ = 0;
  const std::shared_ptr<TcpStoreScope> scope_;
  std::string peer_;
  // Its store is guarded by shared_.mu. Null when it is closed.
  std::shared_ptr<TcpStoreSession> session_;
  // Received bytes that cannot be executed yet: a wait is pending, or replies are unread.
  std::string unread_;
  uint32_t watched_ = EPOLLIN | EPOLLRDHUP;
  // A call of Continue is posted.
  bool will_continue_ = false;
  // The flow control counts it, and has paused it.
  bool is_counted_ = false;
  bool is_paused_ = false;
  uint64_t moved_bytes_ = 0;
  size_t replaced_bytes_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_TCP_STORE_CONNECTION_H_
