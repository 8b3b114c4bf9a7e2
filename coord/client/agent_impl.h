// SPDX-License-Identifier: Apache-2.0
// Agent::Impl: an agent's part in the job, its requests under way, and the state of its barriers.
#ifndef FERRY_COORD_CLIENT_AGENT_IMPL_H_
#define FERRY_COORD_CLIENT_AGENT_IMPL_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/text.h"
#include "coord/client/agent.h"
#include "coord/client/agent_link.h"
#include "coord/core/errors.h"

namespace ferry::coord {

// Limit for a node's final messages on leaving or failing: little time is left, and the
// coordinator detects the end by itself.
inline constexpr absl::Duration kLeaveTimeout = absl::Seconds(3);
// The longest wait that the coordinator accepts.
inline constexpr absl::Duration kLongestWait = absl::Hours(24 * 7);

inline absl::Status StatusOf(const v1::Reply& reply) {
  if (reply.code() == 0) return absl::OkStatus();
  return WithMissingTasks(
      absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message()),
      reply.missing_nodes());
}

// Returns the reply if it arrived and is OK, else the error.
inline absl::StatusOr<v1::Reply> Checked(absl::StatusOr<v1::Reply> reply) {
  if (!reply.ok()) return reply;
  if (absl::Status status = StatusOf(*reply); !status.ok()) return status;
  return reply;
}

inline int64_t Milliseconds(absl::Duration timeout) {
  // Rounded up: zero would mean "do not wait".
  if (timeout <= absl::ZeroDuration()) return 0;
  return std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kLongestWait)));
}

// Thread-safe. Joins the job and leaves it, and sends the requests of Agent's methods, which only
// write the requests and read the replies.
class Agent::Impl final {
 public:
  explicit Impl(AgentOptions options) : options_(std::move(options)) {}
  // Calls that wait in other threads end CANCELLED, and have stopped using it when this returns.
  ~Impl() {
    if (link_ == nullptr) return;
    link_->GiveUp(absl::CancelledError("the agent was destroyed"));
    const auto are_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return answers_ == 0; };
    const absl::MutexLock lock(&mu_, absl::Condition(&are_over));
  }

  // Starts connecting to the coordinator.
  absl::Status Open() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for it, and for the other nodes.
  absl::Status Join() ABSL_LOCKS_EXCLUDED(mu_);
  // Instead of joining: fails the nodes that do, or the first that registers, with
  // options_.cannot_join.
  absl::Status FailJoining();
  // Ends Join, on another thread, with an error; notifies the coordinator.
  void GiveUp(const absl::Status& why);
  // Leaves the job.
  absl::Status Detach();
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  bool has_failed() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return has_failed_;
  }

  // The pending answer to a request. The agent is not destroyed before it.
  class Answer final {
   public:
    explicit Answer(Impl& impl) : impl_(impl), awaited_(impl.link_->loop()) {
      const absl::MutexLock lock(&impl_.mu_);
      ++impl_.answers_;
    }
    ~Answer() {
      const absl::MutexLock lock(&impl_.mu_);
      --impl_.answers_;
    }
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;

    // Waits for the reply, which may itself contain an error.
    absl::StatusOr<v1::Reply> WaitForAny() {
      if (!is_refused_) awaited_.Wait();
      return std::move(reply_);
    }
    // Waits for the reply; returns its error if it contains one.
    absl::StatusOr<v1::Reply> Wait() { return Checked(WaitForAny()); }

   private:
    friend class Impl;
    Impl& impl_;
    bool is_refused_ = false;
    SocketLoop::Awaited awaited_;
    absl::StatusOr<v1::Reply> reply_ = absl::UnknownError("no answer");
  };

  // Sends `request`, unless this is a callback, which would wait for its own thread.
  std::shared_ptr<Answer> Begin(v1::Request request, absl::Duration timeout, std::string what,
                                bool keeps_time = false) {
    auto answer = std::make_shared<Answer>(*this);
    if (link_->IsOnThread()) {
      answer->is_refused_ = true;
      answer->reply_ = absl::FailedPreconditionError(
          absl::StrCat("a callback must not wait for ", what,
                       ": answers arrive on its thread; nothing was ", "sent"));
      return answer;
    }
    link_->Call(
        std::move(request), std::min(timeout, kLongestWait), std::move(what),
        [answer](absl::StatusOr<v1::Reply> reply) {
          answer->reply_ = std::move(reply);
          answer->awaited_.Notify();
        },
        keeps_time);
    return answer;
  }

  // Sends `request` and waits for an OK reply.
  absl::StatusOr<v1::Reply> Ask(v1::Request request, absl::Duration timeout, std::string what,
                                bool keeps_time = false) {
    return Begin(std::move(request), timeout, std::move(what), keeps_time)->Wait();
  }

  // Sends a request that does not wait for other nodes.
  absl::StatusOr<v1::Reply> AskQuickly(v1::Request request, std::string what) {
    const absl::Duration timeout = AnswerTimeout(request.ByteSizeLong());
    return Ask(std::move(request), timeout, std::move(what), /*keeps_time=*/true);
  }
  // As AskQuickly, without waiting.
  void AskQuicklyAsync(v1::Request request, std::string what, AgentLink::ReplyCallback done) {
    const absl::Duration timeout = AnswerTimeout(request.ByteSizeLong());
    link_->CallAsync(std::move(request), timeout, std::move(what), std::move(done),
                     /*keeps_time=*/true);
  }
  // The timeout of a request of `bytes` that does not wait for other nodes, on a network that
  // carries 1 MiB/s.
  absl::Duration AnswerTimeout(size_t bytes) const {
    return options_.answer_timeout + absl::Seconds(static_cast<double>(bytes) / (1 << 20));
  }
  // Reports an error that ends this node's participation.
  absl::Status Report(const absl::Status& error) {
    v1::Request request;
    request.mutable_report_error()->set_code(static_cast<int>(error.code()));
    request.mutable_report_error()->set_message(std::string(error.message()));
    return Ask(std::move(request), kLeaveTimeout, "an error report to be confirmed",
               /*keeps_time=*/true)
        .status();
  }

  // The coordinator has given the node id to another process, or does not know it.
  bool is_refused() const { return is_refused_; }
  // The topology that Connect received; nullptr if it did not send devices.
  const std::shared_ptr<const GlobalTopology>& topology() const { return topology_; }
  AgentLink& link() { return *link_; }
  const v1::Welcome& welcome() const { return welcome_; }
  uint64_t incarnation() const { return options_.incarnation; }

  // Takes the barrier's next use; FAILED_PRECONDITION while another call waits there.
  absl::StatusOr<int64_t> BeginBarrier(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    BarrierUse& use = barriers_[id];
    if (use.is_waiting) {
      return absl::FailedPreconditionError(
          absl::StrCat("this process is waiting at barrier ", Quoted(id), " already"));
    }
    use.is_waiting = true;
    return use.next;
  }
  void EndBarrier(const std::string& id, const absl::StatusOr<v1::Reply>& reply)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    BarrierUse& use = barriers_[id];
    use.is_waiting = false;
    // The coordinator reports which use it is at; if it does not, the count stays.
    const bool has_word =
        reply.ok() && reply->code() != static_cast<int>(absl::StatusCode::kUnavailable);
    if (has_word) use.next = reply->counter() + 1;
  }
  absl::StatusOr<int64_t> WaitingUse(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = barriers_.find(id);
    if (found != barriers_.end() && found->second.is_waiting) return found->second.next;
    return absl::FailedPreconditionError(
        absl::StrCat("this process does not wait at barrier ", Quoted(id)));
  }

 private:
  struct BarrierUse {
    int64_t next = 0;
    bool is_waiting = false;
  };

  AgentOptions options_;
  absl::Time join_deadline_;
  v1::Welcome welcome_;
  bool is_refused_ = false;
  std::shared_ptr<const GlobalTopology> topology_;
  absl::Mutex mu_;
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;
  // Those that exist.
  int answers_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, BarrierUse> barriers_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Service> error_service_;
  std::unique_ptr<grpc::Server> error_server_;
  // Last, so that it is destroyed first: its callbacks use the other members.
  std::unique_ptr<AgentLink> link_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_AGENT_IMPL_H_
