// SPDX-License-Identifier: Apache-2.0
// ConnectionManager: where a process listens for its peers and from where it connects to them.
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
#include "transport/control/connector.h"
#include "transport/control/control_channel.h"
#include "transport/control/handshake.h"

namespace ferry {

struct ConnectionManagerOptions {
  HandshakeOptions handshake;
  // HOST:PORT for peers of other hosts; port 0 takes a free one. Empty: none.
  std::string tcp_listen = ":0";
  // Whether peers of this host may come through a Unix socket.
  bool unix_listen = true;
  // Of a connection attempt and of a handshake, each address for itself.
  absl::Duration handshake_timeout = absl::Seconds(10);
  // What a control channel keeps for a peer that does not take it.
  size_t lane_queue_bytes = size_t{64} << 20;
};

struct ConnectionManagerStats {
  int64_t accepted = 0;
  // Who could not prove to be of this job, or spoke something else.
  int64_t refused = 0;
  // Why the last of them was, and from where it came; empty: nobody was.
  std::string last_refusal;
};

// A connection whose two ends know each other, for bytes of tensors.
struct DataConnection {
  PeerId peer;
  UniqueFd socket;
  uint32_t index = 0;
  // Whether this side has connected.
  bool is_client = false;
};

// Thread-safe.
class ConnectionManager final : public Connector {
 public:
  // Each is called on the loop, for connections that have come from `peer`.
  using AcceptLane = std::function<std::shared_ptr<ControlHandler>(const PeerId& peer)>;
  using AcceptData = std::function<void(DataConnection connection)>;
  using DataCallback = absl::AnyInvocable<void(absl::StatusOr<DataConnection>) &&>;

  // `loop` outlives it.
  //   Errors: INVALID_ARGUMENT, UNAVAILABLE naming the address that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ConnectionManager>> Create(EventLoop& loop,
                                                                   ConnectionManagerOptions options,
                                                                   AcceptLane accept_lane,
                                                                   AcceptData accept_data);
  // As Close.
  ~ConnectionManager() override;

  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  // Accepts from now on; who came before waits. Once, when the callbacks may be called.
  //   Errors: as EventLoop::Add.
  absl::Status Start();

  const std::string& unix_name() const { return unix_name_; }
  // 0: does not listen there.
  int tcp_port() const { return tcp_port_; }

  AttemptId Connect(const PeerId& peer, const PeerAddresses& addresses, bool use_unix,
                    std::shared_ptr<ControlHandler> handler) override;
  void CancelConnect(AttemptId attempt, const absl::Status& why) override;
  void RunAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) override;
  absl::Time Now() const override;
  // A TCP connection for data; `done` is called on the loop.
  void ConnectData(const PeerId& peer, const PeerAddresses& addresses, uint32_t index,
                   DataCallback done);

  ConnectionManagerStats stats() const;

  // Accepts no more; attempts that are under way end CANCELLED. Control channels stay.
  void Close();

 private:
  class Listener;
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
