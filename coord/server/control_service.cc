// SPDX-License-Identifier: Apache-2.0
// Streams of ferry.v1.Control, and the registry of sessions.
#include "coord/server/control_service.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include <google/protobuf/arena.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "coord/wire/bytes.h"
#include "coord/wire/control_limits.h"
#include "coord/wire/errors.h"

namespace ferry::coord {
namespace {

// A tool that lost its connection reconnects; its waits need not be kept for long.
constexpr absl::Duration kToolGrace = absl::Seconds(5);
constexpr absl::Duration kSweepPeriod = absl::Seconds(1);

std::string HostOf(const v1::Node& node) {
  return absl::StrCat(node.host_name().empty() ? "an unnamed host" : node.host_name(),
                      node.boot_id().empty() ? "" : absl::StrCat(" (boot ", node.boot_id(), ")"));
}

bool IsOtherHost(const v1::Node& a, const v1::Node& b) {
  if (!a.boot_id().empty() && !b.boot_id().empty()) return a.boot_id() != b.boot_id();
  return a.host_name() != b.host_name();
}

using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// One stream. Owned by gRPC: deletes itself when the call is over.
class ControlStream final : public Reactor, public FrameSink {
 public:
  ControlStream(ControlSessions& sessions, std::string observed_address)
      : entry_(sessions, std::move(observed_address)) {
    StartRead(&in_);
  }

  bool Write(grpc::ByteBuffer& frame) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (is_finished_) return false;
    out_.Swap(&frame);
    is_writing_ = true;
    StartWrite(&out_);
    return false;
  }

  void Finish(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (is_finished_) return;
    is_finished_ = true;
    why_ = why;
    if (!is_writing_) Reactor::Finish(ToGrpcStatus(why_));
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(absl::OkStatus());  // The client has half-closed or disconnected.
    absl::Status status = CheckFrameBytes(in_.Length(), entry_.max_frame_bytes());
    if (status.ok()) {
      const grpc::Slice frame = Flatten(in_);
      in_.Clear();
      status = entry_.OnFrame(View(frame), *this);
    }
    if (!status.ok()) return Finish(status);
    absl::MutexLock lock(&mu_);
    if (!is_finished_) StartRead(&in_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      is_writing_ = false;
      if (is_finished_) return Reactor::Finish(ToGrpcStatus(why_));
    }
    // Set before the session can write anything.
    if (ok) entry_.session()->OnWritten(*this);
  }

  void OnCancel() override { Finish(absl::CancelledError("the client has gone")); }

  void OnDone() override {
    entry_.Detach(*this);
    delete this;
  }

  ControlEntry entry_;
  grpc::ByteBuffer in_;

  absl::Mutex mu_;
  grpc::ByteBuffer out_ ABSL_GUARDED_BY(mu_);
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
};

class ControlService final : public grpc::Service {
 public:
  explicit ControlService(ControlSessions& sessions) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        "/ferry.v1.Control/Attach", grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(
        0, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
               [&sessions](grpc::CallbackServerContext* context) -> Reactor* {
                 return new ControlStream(sessions, context->peer());
               }));
  }
};

}  // namespace

absl::Status ControlEntry::OnFrame(absl::string_view bytes, FrameSink& sink) {
  // Most frames are small and need no other memory than this.
  alignas(std::max_align_t) char block[2048];
  google::protobuf::ArenaOptions arena_options;
  arena_options.initial_block = block;
  arena_options.initial_block_size = sizeof(block);
  google::protobuf::Arena arena(arena_options);
  auto& frame = *google::protobuf::Arena::CreateMessage<v1::ClientFrame>(&arena);
  FERRY_RETURN_IF_ERROR(ParseFrame(bytes, sessions_.max_frame_bytes(), frame));
  if (session_ == nullptr) {
    if (!frame.has_hello()) return absl::InvalidArgumentError("the first frame holds no Hello");
    absl::StatusOr<OpenSession> open = sessions_.Open(frame.hello(), observed_address_);
    if (!open.ok()) return open.status();
    session_ = std::move(open->session);
    session_->Attach(sink, frame.hello().acked_sequence(), std::move(open->welcome));
    session_->NoteAlive();
  }
  return session_->OnFrame(frame);
}

void ControlEntry::Detach(FrameSink& sink) {
  if (session_ != nullptr) session_->Detach(sink);
}

ControlSessions::ControlSessions(
    Frontend& frontend,
    std::function<absl::Status(const Coordinator&, absl::string_view auth_tag)> check_end_job)
    : shared_{.frontend = frontend, .check_end_job = std::move(check_end_job)} {
  shared_.frontend.executor().SetAfterBatch([gather = shared_.gather] { gather->Flush(); });
  shared_.frontend.executor().Run([this](Coordinator& coordinator) {
    rank_grace_ = coordinator.options().heartbeat_timeout;
    max_frame_bytes_ = coordinator.options().max_frame_bytes;
  });
  absl::MutexLock lock(&mu_);
  ArmLocked();
}

ControlSessions::~ControlSessions() {
  CloseAll(absl::UnavailableError("the coordinator is stopping"));
  std::unique_ptr<grpc::Alarm> alarm;
  {
    absl::MutexLock lock(&mu_);
    alarm = std::move(alarm_);
  }
  if (alarm != nullptr) alarm->Cancel();
  absl::MutexLock lock(&mu_);
  while (is_sweep_armed_) swept_.Wait(&mu_);
}

void ControlSessions::ArmLocked() {
  if (is_closing_) return;
  is_sweep_armed_ = true;
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kSweepPeriod),
              [this](bool) { Sweep(); });
}

void ControlSessions::Sweep() {
  // Before the alarm is armed again, so that only one runs at a time.
  trim_.Step();
  const absl::Time now = SteadyClock().Now();
  std::vector<std::shared_ptr<ControlSession>> expired;
  std::unique_ptr<grpc::Alarm> spent;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      const std::shared_ptr<ControlSession>& session = it->second;
      const bool is_rank = session->task() != kNoTask && !session->has_left();
      if (now - session->detached_since() > (is_rank ? rank_grace_ : kToolGrace)) {
        expired.push_back(session);
        ForgetIdentityLocked(session);
        sessions_.erase(it++);
      } else {
        ++it;
      }
    }
    // An alarm may not be destroyed by its own callback while it is armed again.
    spent = std::move(alarm_);
    is_sweep_armed_ = false;
    ArmLocked();
    swept_.Signal();
  }
  for (const auto& session : expired) {
    FERRY_LOG_DEBUG(kCoord, "session expired: session={:x}", session->id());
    const size_t dropped = session->Close(absl::AbortedError("the session has expired"));
    for (size_t i = 0; i < dropped; ++i) shared_.frontend.CountDroppedWait();
  }
}

void ControlSessions::ForgetIdentityLocked(const std::shared_ptr<ControlSession>& session) {
  const auto node = by_node_.find(session->node().node_id());
  if (node != by_node_.end() && node->second == session) by_node_.erase(node);
  for (const std::string& uuid : session->node().gpu_uuids()) {
    const auto gpu = by_gpu_.find(uuid);
    if (gpu != by_gpu_.end() && gpu->second == session) by_gpu_.erase(gpu);
  }
}

absl::Status ControlSessions::CheckIdentityLocked(const v1::Node& node,
                                                  const std::string& observed_address,
                                                  int64_t epoch) {
  const auto in_use = [this, epoch,
                       now = SteadyClock().Now()](const std::shared_ptr<ControlSession>& session) {
    return session->detached_since() == absl::InfiniteFuture() && !session->has_left() &&
           !session->IsOfJobBefore(epoch) && !session->IsSilent(now, rank_grace_);
  };
  const auto same_node = by_node_.find(node.node_id());
  if (same_node != by_node_.end() && in_use(same_node->second) &&
      same_node->second->node().incarnation() != node.incarnation()) {
    const ControlSession& other = *same_node->second;
    return absl::AlreadyExistsError(
        absl::StrCat("node ", node.node_id(), " has joined already: from ", HostOf(other.node()),
                     ", process ", other.node().process_id(), ", at ", other.observed_address(),
                     "; this is ", HostOf(node), ", process ", node.process_id(), ", at ",
                     observed_address, ". Two processes were started with one node id"));
  }
  for (const std::string& uuid : node.gpu_uuids()) {
    const auto same_gpu = by_gpu_.find(uuid);
    if (same_gpu == by_gpu_.end() || !in_use(same_gpu->second)) continue;
    const v1::Node& other = same_gpu->second->node();
    if (other.node_id() == node.node_id() || !IsOtherHost(other, node)) continue;
    return absl::AlreadyExistsError(absl::StrCat("GPU ", uuid, " of node ", node.node_id(), " on ",
                                                 HostOf(node), " is already that of node ",
                                                 other.node_id(), " on ", HostOf(other),
                                                 ". One machine was given to the job twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenSession> ControlSessions::Open(const v1::Hello& hello,
                                                  const std::string& observed_address) {
  OpenSession open;
  open.welcome.set_observed_address(observed_address);
  open.welcome.set_max_frame_bytes(max_frame_bytes_);
  int64_t epoch = 0;
  const absl::Status known =
      shared_.frontend.executor().Run([&](Coordinator& coordinator) -> absl::Status {
        epoch = coordinator.epoch();
        open.welcome.set_coordinator_incarnation(coordinator.incarnation().value());
        open.welcome.set_num_nodes(coordinator.jobs().size());
        open.welcome.set_heartbeat_timeout_ms(
            absl::ToInt64Milliseconds(coordinator.options().heartbeat_timeout));
        if (!hello.has_node()) return absl::OkStatus();
        const absl::StatusOr<TaskId> task = coordinator.jobs().Resolve(hello.node().node_id());
        if (!task.ok()) return task.status();
        return coordinator.CheckIncarnation(*task, Incarnation(hello.node().incarnation()));
      });
  if (!known.ok()) return known;
  std::shared_ptr<ControlSession> superseded;
  {
    absl::MutexLock lock(&mu_);
    if (is_closing_) return absl::UnavailableError("the coordinator is stopping");
    if (hello.session_id() != 0) {
      const auto found = sessions_.find(hello.session_id());
      if (found == sessions_.end()) {
        return absl::AbortedError(
            "the session is not known any more: the coordinator has restarted, or the client was "
            "away for too long");
      }
      if (!found->second->IsOf(hello)) {
        return absl::InvalidArgumentError("the session is another client's");
      }
      open.session = found->second;
    } else if (const auto holder = by_node_.find(hello.node().node_id());
               hello.has_node() && holder != by_node_.end() && holder->second->IsOpening(hello)) {
      open.session = holder->second;
    }
    if (open.session != nullptr) {
      if (open.session->NoteAttempt(hello)) return open;
      return absl::UnavailableError("the client has tried again since");
    }
    if (hello.has_node()) {
      if (absl::Status status = CheckIdentityLocked(hello.node(), observed_address, epoch);
          !status.ok()) {
        FERRY_LOG_INFO(kCoord, "client refused: task={} address={}: {}", hello.node().node_id(),
                       observed_address, status);
        return status;
      }
    }
    uint64_t id = RandomId();
    while (sessions_.contains(id)) id = RandomId();
    open.session = std::make_shared<ControlSession>(id, shared_, hello, observed_address);
    open.session->NoteAttempt(hello);
    sessions_.emplace(id, open.session);
    if (hello.has_node()) {
      std::shared_ptr<ControlSession>& holder = by_node_[hello.node().node_id()];
      superseded = std::exchange(holder, open.session);
      if (superseded != nullptr) {
        ForgetIdentityLocked(superseded);
        sessions_.erase(superseded->id());
      }
      for (const std::string& uuid : hello.node().gpu_uuids()) by_gpu_[uuid] = open.session;
    }
  }
  if (superseded != nullptr) {
    superseded->Close(absl::AbortedError("the node has started another session"));
  }
  return open;
}

void ControlSessions::CloseAll(const absl::Status& why) {
  SessionMap sessions;
  {
    absl::MutexLock lock(&mu_);
    is_closing_ = true;
    sessions = std::exchange(sessions_, {});
    by_node_.clear();
    by_gpu_.clear();
  }
  for (const auto& [id, session] : sessions) session->FinishWhenDrained(why);
}

size_t ControlSessions::attached_count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<size_t>(std::count_if(
      sessions_.begin(), sessions_.end(),
      [](const auto& each) { return each.second->detached_since() == absl::InfiniteFuture(); }));
}

std::unique_ptr<grpc::Service> MakeControlService(ControlSessions& sessions) {
  return std::make_unique<ControlService>(sessions);
}

}  // namespace ferry::coord
