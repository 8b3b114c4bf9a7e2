// SPDX-License-Identifier: Apache-2.0
// A unary call of a compatible service: answered at once, or deferred until the coordinator
// answers.
#ifndef FERRY_COORD_SERVER_CALL_H_
#define FERRY_COORD_SERVER_CALL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coord/core/coordinator_executor.h"
#include "coord/core/types.h"
#include "coord/wire/bytes.h"
#include "coord/wire/errors.h"

namespace ferry::coord {

class UnaryCall;

// Shared by all services of the coordinator: its executor, and which tasks call and poll from which
// address. Thread-safe.
class Frontend final {
 public:
  explicit Frontend(CoordinatorExecutor& executor) : executor_(executor) {}

  CoordinatorExecutor& executor() { return executor_; }

  // A new connection from `address`: discards the state of an earlier connection.
  void NoteConnection(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);
  // Records the tasks, with their incarnations, that registered or sent heartbeats from an
  // address. Usually one; several if processes share a connection.
  void NoteCaller(const std::string& address, TaskId task, Incarnation life)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<TaskId> CallersAt(const std::string& address) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the only task there, or kNoTask. Status reports attribute calls that do not name their
  // task, such as a get, to it.
  TaskId CallerAt(const std::string& address) const ABSL_LOCKS_EXCLUDED(mu_);
  // For calls that name a task but not its incarnation: ABORTED if the process at the other end of
  // the connection belongs to an earlier job, OK if unknown. Call with the executor's lock held.
  absl::Status CheckCaller(const Coordinator& coordinator, const UnaryCall& call, TaskId task) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // As CheckCaller, for a call that names no task: checks every task known to call from there.
  absl::Status CheckCallers(const UnaryCall& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Until the second job begins, no call can belong to an earlier one.
  void NoteEpoch(int64_t epoch) { epoch_.store(epoch, std::memory_order_relaxed); }

  // `task` polls for errors from `address`.
  void NotePoll(const std::string& address, TaskId task) ABSL_LOCKS_EXCLUDED(mu_);
  // `task` registers: the connection of its earlier poll is no longer relevant.
  void ForgetPoll(TaskId task) ABSL_LOCKS_EXCLUDED(mu_);
  // A task whose latest error poll came over a connection that has ended.
  struct LostPoll {
    TaskId task = kNoTask;
    uint64_t number = 0;
  };
  // The connection from `address` has ended: returns the tasks that polled over it.
  std::vector<LostPoll> TakeLostPolls(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);
  // Reports those of the tasks to the coordinator that have not polled again since.
  void TellLost(const std::vector<LostPoll>& polls) ABSL_LOCKS_EXCLUDED(mu_);

  // Set before the first call: cancels a wait of WaitKind::kQuorum, which is not the coordinator's.
  void SetCancelQuorum(std::function<bool(WaitId)> cancel) { cancel_quorum_ = std::move(cancel); }
  // The client of a deferred call has disconnected, cancelled or timed out: ends its wait.
  void Drop(WaitId wait);
  // The waits that ended so, here and in sessions.
  int64_t dropped_waits() const { return dropped_waits_.load(std::memory_order_relaxed); }
  void CountDroppedWait() { dropped_waits_.fetch_add(1, std::memory_order_relaxed); }

 private:
  CoordinatorExecutor& executor_;
  // Constant once in use.
  std::function<bool(WaitId)> cancel_quorum_;
  std::atomic<int64_t> dropped_waits_{0};
  // Acquired after the executor's lock, if both are held.
  mutable absl::Mutex mu_;
  struct Caller {
    TaskId task = kNoTask;
    Incarnation life;
  };
  absl::flat_hash_map<std::string, std::vector<Caller>> callers_ ABSL_GUARDED_BY(mu_);
  // The latest error poll of each task, and those that came from an address.
  uint64_t last_poll_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<TaskId, uint64_t> polls_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::vector<LostPoll>> polls_at_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> epoch_{1};
};

class DeferredCall;

// A call in its handler. Exactly one of Finish, Reply, Answer and Park is called, once, before the
// handler returns; the call is not used after that.
class UnaryCall {
 public:
  // The remote address in gRPC's format, such as "ipv4:10.0.0.7:41234".
  virtual std::string peer() const = 0;
  // How long the client will still wait, by its own deadline; infinite if it has none.
  virtual absl::Duration TimeLeft() const = 0;
  // Sends `response` if the status is OK. Not with a lock held.
  virtual void Answer(grpc::Status status, grpc::ByteBuffer response) = 0;

  void Finish(grpc::Status status) { Answer(std::move(status), {}); }
  void Reply(const google::protobuf::MessageLite& message) {
    Answer(grpc::Status::OK, SerializeMessage(message));
  }
  // Calls `body(object, DeferredCall*)` on the executor, whose `object` is a Coordinator or a
  // Lighthouse. It returns the WaitId of the pending call, or a plain error that ends it;
  // completions that it queues may answer the call.
  template <typename Executor, typename Body>
  void Park(Executor& executor, Body&& body);

 protected:
  ~UnaryCall() = default;
  // Converts the call to a form that outlives the handler.
  virtual DeferredCall* Keep() = 0;
};

// A call that the coordinator answers later, exactly once. Blocks no thread. Owned by gRPC, which
// releases it when it has been answered and its handler has returned.
class DeferredCall : public UnaryCall {
 public:
  // The wait to cancel when the client disconnects. Only while the handler runs.
  virtual void SetWait(WaitId wait) = 0;
};

template <typename Executor, typename Body>
void UnaryCall::Park(Executor& executor, Body&& body) {
  DeferredCall* const call = Keep();
  const absl::StatusOr<WaitId> wait =
      executor.Run([&](auto& object) { return absl::StatusOr<WaitId>(body(object, call)); });
  if (!wait.ok()) return call->Finish(ToGrpcStatus(wait.status()));
  call->SetWait(*wait);
}

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CALL_H_
