// SPDX-License-Identifier: Apache-2.0
// AgentLink: the agent's session with the coordinator, across connections.
#ifndef FERRY_COORD_CLIENT_AGENT_LINK_H_
#define FERRY_COORD_CLIENT_AGENT_LINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/thread.h"
#include "base/wakeup.h"
#include "coord/client/agent_outbox.h"
#include "coord/client/agent_stream.h"
#include "coord/client/reconnect_policy.h"
#include "net/socket_loop.h"
#include "proto/ferry_control.pb.h"

namespace ferry::coord {

struct AgentLinkOptions {
  std::string coordinator;
  v1::Hello hello;
  // For the first Welcome.
  absl::Duration connect_timeout;
  // Zero: the heartbeat timeout that the coordinator reports.
  absl::Duration reconnect_timeout;
  // See AgentOptions.
  absl::Duration idle_timeout;
  absl::Duration connect_attempt_timeout;
  // The link is lost permanently, or a heartbeat was rejected. At most once; see AgentOptions.
  std::function<void(absl::Status)> on_lost;
  // An event that belongs to no request.
  std::function<void(const v1::Event&)> on_event;
  // See AgentOptions.
  std::function<void(const absl::Status&)> on_attempt_failed;
};

// Thread-safe. Sends requests and delivers replies, over a plain connection (direct_frames.h).
// Reconnects when that breaks (ReconnectPolicy), resending what the coordinator has not received
// (AgentOutbox). Heartbeats and deadlines run on the thread "ferry-agent"; reading, on the loop
// shared by all agents of a process. Locks: mu_ is never held in a callback.
class AgentLink final : private AgentStream::Owner {
 public:
  // OK: the coordinator's answer, which may itself contain an error; not OK: none arrived.
  using ReplyCallback = absl::AnyInvocable<void(absl::StatusOr<v1::Reply>) &&>;
  using EventCallback = std::function<void(const v1::Event&)>;

  // `loop`: reads the connection.
  AgentLink(AgentLinkOptions options, std::shared_ptr<SocketLoop> loop);
  // Pending requests end CANCELLED. Must not be called from a callback.
  ~AgentLink();

  // Blocks until the first Welcome.
  absl::StatusOr<v1::Welcome> WaitUntilAttached() ABSL_LOCKS_EXCLUDED(mu_);

  // True if there is a connection on which the coordinator has sent a frame.
  bool is_attached() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all pending and later calls with `why`; on_lost is not called.
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Between the two, calls that wait for other nodes are limited by connect_timeout: a coordinator
  // that is unreachable then is lost.
  void StartJoining() ABSL_LOCKS_EXCLUDED(mu_);
  void StopJoining() ABSL_LOCKS_EXCLUDED(mu_);

  // `timeout`: for the answer to arrive. The coordinator enforces the timeout of requests that
  // carry one, and the agent only some seconds later; with `keeps_time` the agent does so exactly.
  // DEADLINE_EXCEEDED says whether the request may still execute: one that was not sent by then
  // never does. RESOURCE_EXHAUSTED without sending it: it exceeds the coordinator's frame limit.
  // `what`: for messages. Returns the request's id. Callers that do not wait for the answer
  // through SocketLoop::Awaited use CallAsync.
  uint64_t Call(v1::Request request, absl::Duration timeout, std::string what, ReplyCallback done,
                bool keeps_time = false) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t CallAsync(v1::Request request, absl::Duration timeout, std::string what,
                     ReplyCallback done, bool keeps_time = false) ABSL_LOCKS_EXCLUDED(mu_) {
    loop_->RequestThread();
    return Call(std::move(request), timeout, std::move(what), std::move(done), keeps_time);
  }
  // The loop that reads the connection.
  SocketLoop& loop() { return *loop_; }
  // True on a thread that must not wait: in a callback of the loop, or on the agent's own thread.
  bool IsOnThread() const {
    return loop_->IsOnLoop() || keeper_.load() == std::this_thread::get_id();
  }
  // Runs `callback` on the agent's thread.
  void Defer(absl::AnyInvocable<void() &&> callback) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends a request that is answered by events until it is cancelled.
  uint64_t Subscribe(v1::Request request, EventCallback on_event) ABSL_LOCKS_EXCLUDED(mu_);
  void Unsubscribe(uint64_t request_id) ABSL_LOCKS_EXCLUDED(mu_);

  // Starts sending heartbeats.
  void StartHeartbeats() ABSL_LOCKS_EXCLUDED(mu_);
  void StopHeartbeats() ABSL_LOCKS_EXCLUDED(mu_);
  void SetProgress(uint64_t progress) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    absl::Time since;
    absl::Time deadline;
    std::string what;
    // Executed by the coordinator even if its caller has stopped waiting.
    bool has_effect = false;
    ReplyCallback done;
  };
  using Ready = std::vector<absl::AnyInvocable<void() &&>>;

  void Keep() ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t SendLocked(v1::Request request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t MaxFrameBytesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns an error if the coordinator would reject its size.
  absl::Status CheckSizeLocked(const v1::Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the stream to open once mu_ is released.
  std::shared_ptr<AgentStream> AttachLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration HeartbeatPeriodLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HeartbeatLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLocked(absl::Time now, Ready& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteJobError(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);
  // The link is over: all pending calls end with `why`.
  void MarkLostLocked(const absl::Status& why, Ready& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(std::map<uint64_t, Pending>::iterator pending, absl::StatusOr<v1::Reply> reply,
                 Ready& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // AgentStream::Owner.
  void OnFrame(AgentStream& stream, v1::ServerFrame& frame) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten(AgentStream& stream) override ABSL_LOCKS_EXCLUDED(mu_);
  // The link may be destroyed once all streams have ended.
  void OnEnded(AgentStream& stream, const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const AgentLinkOptions options_;
  const std::shared_ptr<SocketLoop> loop_;

  // The agent's thread.
  std::atomic<std::thread::id> keeper_{};
  absl::Mutex mu_;
  // For the timer thread, and for waiting for the first Welcome or the last stream's end. Woken
  // with mu_ held, because it is destroyed soon after that end.
  Wakeup changed_;
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  // Not OK: lost permanently, and why.
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  // The current stream. Others may still be ending: stream_count_ counts all.
  std::shared_ptr<AgentStream> stream_ ABSL_GUARDED_BY(mu_);
  int stream_count_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_attached_ ABSL_GUARDED_BY(mu_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<v1::Welcome> welcome_ ABSL_GUARDED_BY(mu_);
  // When the current stream's attempt began; InfiniteFuture once it has timed out.
  absl::Time attempt_began_ ABSL_GUARDED_BY(mu_);
  ReconnectPolicy reconnect_ ABSL_GUARDED_BY(mu_);

  // See v1::Hello.
  const uint64_t opening_;
  uint32_t attempt_ ABSL_GUARDED_BY(mu_) = 0;

  AgentOutbox outbox_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<absl::Time, uint64_t>> deadlines_ ABSL_GUARDED_BY(mu_);
  // The latest time at which the timer thread wakes up.
  absl::Time next_wakeup_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::map<uint64_t, std::shared_ptr<const EventCallback>> subscriptions_ ABSL_GUARDED_BY(mu_);

  bool has_heartbeats_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time next_heartbeat_ ABSL_GUARDED_BY(mu_);
  uint64_t progress_ ABSL_GUARDED_BY(mu_) = 0;
  // Callbacks for the agent's thread, so that none runs inside the call that passed it.
  Ready deferred_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_LINK_H_
