// SPDX-License-Identifier: Apache-2.0
// ConnectionManager: listens for peers and connects to them.
#ifndef FERRY_TRANSPORT_CONTROL_CONNECTION_MANAGER_H_
#define FERRY_TRANSPORT_CONTROL_CONNECTION_MANAGER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "net/event_loop.h"
#include "transport/control/auth_handshake.h"
#include "transport/control/connector.h"
#include "transport/control/control_channel.h"

namespace ferry {

struct ConnectionManagerOptions {
  AuthHandshakeOptions handshake;
  // HOST:PORT for peers on other hosts; port 0 picks a free one. Empty: none.
  std::string tcp_listen = ":0";
  // Whether peers on this host may connect through a Unix socket.
  bool unix_listen = true;
  // Timeout of a connection attempt and of its handshake, for each address.
  absl::Duration handshake_timeout = absl::Seconds(10);
  // Send-queue limit of a control channel whose peer is slow, in bytes.
  size_t peer_queue_bytes = size_t{64} << 20;
};

struct ConnectionManagerStats {
  int64_t accepted = 0;
  // Connections that failed authentication or spoke another protocol.
  int64_t refused = 0;
  // Why the last one was refused, and its address; empty: none was.
  std::string last_refusal;
};

// An authenticated connection for tensor data.
struct DataConnection {
  PeerId peer;
  UniqueFd socket;
  uint32_t index = 0;
  // True if this side connected.
  bool is_client = false;
};

// Thread-safe.
class ConnectionManager final : public Connector {
 public:
  // Called on the loop, for connections from `peer`.
  using AcceptChannel = std::function<std::shared_ptr<ControlHandler>(const PeerId& peer)>;
  using AcceptData = std::function<void(DataConnection connection)>;
  using DataCallback = absl::AnyInvocable<void(absl::StatusOr<DataConnection>) &&>;

  // `loop` must outlive it.
  //   Errors: INVALID_ARGUMENT, UNAVAILABLE naming the address that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ConnectionManager>> Create(EventLoop& loop,
                                                                   ConnectionManagerOptions options,
                                                                   AcceptChannel accept_channel,
                                                                   AcceptData accept_data);
  // Calls Close.
  ~ConnectionManager() override;

  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  // Starts accepting; earlier connections wait in the backlog. Call once, when the callbacks may
  // run.
  //   Errors: as Loop::Add.
  absl::Status Start();

  const std::string& unix_name() const { return unix_name_; }
  // 0: does not listen on TCP.
  int tcp_port() const { return tcp_port_; }

  AttemptId Connect(const PeerId& peer, const PeerAddresses& addresses, bool use_unix,
                    std::shared_ptr<ControlHandler> handler) override;
  void CancelConnect(AttemptId attempt, const absl::Status& why) override;
  void RunAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) override;
  absl::Time Now() const override;
  // Opens a TCP data connection; `done` is called on the loop.
  void ConnectData(const PeerId& peer, const PeerAddresses& addresses, uint32_t index,
                   DataCallback done);

  ConnectionManagerStats stats() const;

  // Stops accepting; pending attempts end CANCELLED. Control channels stay open.
  void Close();

 private:
  class IncomingAttempts;
  class Attempt;
  struct Shared;

  ConnectionManager(EventLoop& loop, std::shared_ptr<Shared> shared);
  AttemptId Begin(std::shared_ptr<Attempt> attempt);

  EventLoop& loop_;
  const std::shared_ptr<Shared> shared_;
  std::string unix_name_;
  int tcp_port_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONNECTION_MANAGER_H_
