// SPDX-License-Identifier: Apache-2.0
// ferry.v1.Control over plain connections, on the port shared with gRPC.
#ifndef FERRY_COORD_SERVER_DIRECT_CONTROL_H_
#define FERRY_COORD_SERVER_DIRECT_CONTROL_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "base/wakeup.h"
#include "coord/server/control_service.h"
#include "net/socket_loop.h"

namespace ferry::coord {

struct DirectControlOptions {
  // As ServerOptions.
  absl::Duration keepalive_time;
  absl::Duration keepalive_timeout;
  absl::Duration hello_timeout;
  size_t max_silent_connections;
  // Takes over the connections of PyTorch's store clients, those of its rendezvous, and all other
  // ones; called by several threads.
  std::function<void(UniqueFd)> tcp_store;
  std::function<void(UniqueFd)> elastic;
  std::function<void(UniqueFd)> others;
};

// Thread-safe. Detects the agents' connections by their first byte and serves their streams;
// passes all others to PyTorch's store or rendezvous, or to gRPC. Thread: "ferry-direct".
class DirectControl final {
 public:
  // `sessions` outlives it.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<DirectControl>> Create(ControlSessions& sessions,
                                                               DirectControlOptions options);
  ~DirectControl();

  // Never blocks. Connections that have sent nothing within hello_timeout are closed, the oldest
  // first, while they are more than max_silent_connections, and all that have descriptors over
  // TcpStoreServer::DescriptorLimit. One that begins like an agent's
  // and gets no session is closed as well.
  void Take(UniqueFd connection);

  // The descriptors of the connections whose protocol is not known, since they have sent nothing.
  // REQUIRES: the loop is paused.
  std::vector<int> UndecidedDescriptors() const;
  // The number of connections of agents and tools, with and without a session.
  int stream_count() const { return stream_count_; }

  // The loop it runs on.
  const std::shared_ptr<SocketLoop>& loop() const { return loop_; }
  // How far it is behind with reading.
  absl::Duration Lag() const { return loop_->Lag(); }

  // Closes every stream; those that were ended may take up to `grace` to be read. REQUIRES: the
  // sessions are closed and Take is not called any more. A second call does nothing.
  void Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Stream;
  class Undecided;

  DirectControl(ControlSessions& sessions, DirectControlOptions options)
      : sessions_(sessions), options_(std::move(options)) {}

  // Returns true if the connection's protocol has been detected.
  bool Route(UniqueFd& connection) ABSL_LOCKS_EXCLUDED(mu_);
  void CountAttached(int change) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps `undecided`, which has been silent for hello_timeout. On the loop.
  void LimitSilent(const std::shared_ptr<Undecided>& undecided);

  ControlSessions& sessions_;
  const DirectControlOptions options_;
  std::atomic<int> stream_count_{0};

  // Loop only: the connections that have been silent for hello_timeout, and perhaps some that no
  // longer are.
  std::deque<std::weak_ptr<Undecided>> silent_;
  // All whose protocol is not known.
  absl::flat_hash_set<const Undecided*> undecided_;

  absl::Mutex mu_;
  Wakeup attached_changed_;
  // The number of streams attached to sessions; the others need no notice.
  int attached_ ABSL_GUARDED_BY(mu_) = 0;
  // Constant after Create.
  std::shared_ptr<SocketLoop> loop_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_DIRECT_CONTROL_H_
