// SPDX-License-Identifier: Apache-2.0
// ConnectionManager::Attempt: a connection being established; and state shared by the manager's
// parts.
#ifndef FERRY_TRANSPORT_CONTROL_CONNECT_ATTEMPT_H_
#define FERRY_TRANSPORT_CONTROL_CONNECT_ATTEMPT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

#include "tensor/memory_segment.h"
#include "transport/control/connection_manager.h"
#include "transport/control/shm_control_channel.h"

namespace ferry {

struct ConnectionManager::Shared : public std::enable_shared_from_this<Shared> {
  Shared(EventLoop& loop, ConnectionManagerOptions options, AcceptChannel accept_channel,
         AcceptData accept_data)
      : loop(loop),
        options(std::move(options)),
        accept_channel(std::move(accept_channel)),
        accept_data(std::move(accept_data)) {}

  EventLoop& loop;
  const ConnectionManagerOptions options;
  const AcceptChannel accept_channel;
  const AcceptData accept_data;
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> refused{0};

  void NoteRefusal(std::string why) ABSL_LOCKS_EXCLUDED(mu) {
    refused.fetch_add(1, std::memory_order_relaxed);
    absl::MutexLock lock(&mu);
    last_refusal = std::move(why);
  }

  // Fails outgoing attempts whose address has not answered in time. One timer serves all, so that
  // repeated attempts leave none behind. On the loop.
  void AwaitAnswers();
  void FailOverdueAttempts();

  // An address being tried.
  struct Trying {
    absl::Time until;
    std::weak_ptr<Attempt> attempt;
  };
  // Loop thread only. Oldest first.
  std::deque<Trying> trying;
  bool awaits_answers = false;

  absl::Mutex mu;
  std::string last_refusal ABSL_GUARDED_BY(mu);
  bool is_closed ABSL_GUARDED_BY(mu) = false;
  std::vector<std::shared_ptr<IncomingAttempts>> incoming ABSL_GUARDED_BY(mu);
  absl::flat_hash_set<std::shared_ptr<Attempt>> attempts ABSL_GUARDED_BY(mu);
  // For outgoing attempts.
  AttemptId last_id ABSL_GUARDED_BY(mu) = 0;
};

// A connection that is being established or authenticated. Lives on the loop.
class ConnectionManager::Attempt final : public LoopSource,
                                         public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(std::shared_ptr<Shared> shared, AuthHandshake handshake, bool is_client, bool is_unix)
      : shared_(std::move(shared)),
        handshake_(std::move(handshake)),
        is_client_(is_client),
        is_unix_(is_unix) {}

  // Receives the outcome; incoming attempts use the manager's callbacks instead.
  std::shared_ptr<ControlHandler> handler;
  DataCallback on_data;
  // 0: an incoming attempt.
  AttemptId id = 0;
  // Addresses not yet tried.
  std::deque<std::string> tcp_addresses;
  std::string unix_name;
  // Initial state, to restart with the next address.
  AuthHandshake fresh_handshake = AuthHandshake::Server({});

  // REQUIRES: on the loop, once.
  void StartServer(UniqueFd socket);
  void StartClient();
  void OnReady(uint32_t) override { Advance(); }

  void Cancel(const absl::Status& why);
  // Called when its address has not answered in time.
  void FailLate();
  // True if it has become a channel or data connection, or has failed.
  bool is_over() const { return is_over_; }

 private:
  absl::Status Watch(UniqueFd socket);
  void Unwatch();
  void TryNextAddress();
  // Removes it from the attempts being timed.
  void EndTrying();
  void Connect();
  // Retries after a pause: the peer is out of descriptors.
  void ConnectAgain();
  void Advance();
  absl::Status Step();
  absl::Status SendOutput();
  // Both sides are authenticated.
  absl::Status Finish();
  // The client brings the rings; each passes its doorbell to the other. False: incomplete.
  absl::StatusOr<bool> ExchangeMemory(ShmControlChannel::Memory& memory);
  // Removes it from the list of attempts; returns the reference that keeps it alive.
  std::shared_ptr<Attempt> Leave();
  void Fail(const absl::Status& why);
  // Fails without trying other addresses: they would reach the same job, or the same full peer.
  void FailForGood(const absl::Status& why);
  void End(absl::Status why);

  const std::shared_ptr<Shared> shared_;
  AuthHandshake handshake_;
  const bool is_client_;
  const bool is_unix_;
  UniqueFd socket_;
  EventLoop::SourceId source_ = 0;
  // Deadline for the current address.
  absl::Time give_up_;
  // The peer's error when it had no room for a connection.
  absl::Status refusal_;
  bool is_connected_ = false;
  bool is_over_ = false;
  std::string address_;
  std::string failures_;
  absl::StatusCode last_code_ = absl::StatusCode::kUnavailable;
  MemorySegment rings_;
  std::deque<UniqueFd> arrived_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_CONNECT_ATTEMPT_H_
