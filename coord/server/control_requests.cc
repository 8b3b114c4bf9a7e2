// SPDX-License-Identifier: Apache-2.0
// Executes the requests of ferry.v1.Control.
#include "coord/server/control_requests.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/text.h"
#include "coord/core/errors.h"
#include "coord/server/control_status.h"
#include "coord/wire/control_limits.h"
#include "topology/topology_proto.h"

namespace ferry::coord {
namespace {

// Limits how often pieces of a large frame count as signs of life.
constexpr absl::Duration kAlivePeriod = absl::Milliseconds(200);
// torchft's replicas in a job's status.
constexpr size_t kMaxReportedReplicas = 1024;
// Waits and missing keys in a job's status, for each PyTorch store.
constexpr size_t kMaxReportedWaits = 64;

absl::Status ReportedError(int code, absl::string_view message) {
  const bool is_code = code > 0 && code <= 16;
  return {is_code ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, message};
}

}  // namespace

grpc::Slice SharedBlobs::SliceOf(const TopologyExchange::Result& topology) {
  absl::MutexLock lock(&mu_);
  if (topology != topology_) {
    topology_ = topology;
    auto* keep = new TopologyExchange::Result(topology);
    slice_ = grpc::Slice(
        const_cast<char*>(topology->bytes.data()), topology->bytes.size(),
        [](void* held) { delete static_cast<TopologyExchange::Result*>(held); }, keep);
  }
  return slice_;
}

ControlRequests::ControlRequests(ControlShared& shared, std::shared_ptr<ControlDelivery> delivery,
                                 const v1::Hello& hello, std::string observed_address)
    : shared_(shared),
      delivery_(std::move(delivery)),
      node_(hello.node()),
      task_(hello.has_node() ? TaskId(node_.node_id()) : kNoTask),
      observed_address_(std::move(observed_address)),
      store_requests_(delivery_, task_),
      holds_(shared.tcp_store) {}

void ControlRequests::NoteAlive() {
  if (task_ == kNoTask) return;
  const int64_t now = absl::ToUnixNanos(SteadyClock().CoarseNow());
  if (now - last_alive_ < absl::ToInt64Nanoseconds(kAlivePeriod)) return;
  last_alive_ = now;
  if (last_heartbeat_ != 0) last_heartbeat_ = now;
  shared_.frontend.executor().Run([&](Coordinator& coordinator) {
    coordinator.NoteAlive(task_, Incarnation(node_.incarnation()));
  });
}

void ControlRequests::Execute(Coordinator& coordinator, v1::Request& request, RequestResults& out) {
  if (coordinator.is_stopped()) {
    out.replies.push_back(
        MakeReply(request.id(), absl::UnavailableError("the coordinator is stopping")));
    return;
  }
  if (task_ != kNoTask && request.op_case() != v1::Request::kCancel) {
    // A rank that was stopped may resume during a later job.
    const absl::Status former =
        coordinator.CheckIncarnation(task_, Incarnation(node_.incarnation()));
    if (!former.ok()) {
      out.replies.push_back(MakeReply(request.id(), former));
      return;
    }
  }
  if (out.behind > MaxBacklogBytes(request)) {
    out.replies.push_back(MakeReply(request.id(), BacklogTooLargeError(out.behind)));
    return;
  }
  if (StoreRequests::Handles(request)) return store_requests_.Execute(coordinator, request, out);
  switch (request.op_case()) {
    case v1::Request::kCancel:
      return Cancel(coordinator, request, out);
    case v1::Request::kGetJobStatus: {
      v1::Reply& reply = out.replies.emplace_back();
      reply.set_request_id(request.id());
      FillJobStatus(coordinator, shared_.frontend.dropped_waits(), SteadyClock().Now(),
                    *reply.mutable_job_status());
      out.behind += reply.ByteSizeLong();
      out.without_lock.push_back(&request);
      return;
    }
    case v1::Request::kOpenStore:
    case v1::Request::kCloseStore:
    case v1::Request::kListStore:
      out.without_lock.push_back(&request);
      return;
    case v1::Request::kGetTopology: {
      const TopologyExchange::Result topology = coordinator.topology();
      if (topology == nullptr) {
        out.replies.push_back(
            MakeReply(request.id(), absl::NotFoundError("not every node has sent its devices")));
        return;
      }
      out.shared.emplace_back(out.replies.size(),
                              SharedBytes{.blob = shared_.blobs.SliceOf(topology), .values = {}});
      v1::Reply& reply = out.replies.emplace_back();
      reply.set_request_id(request.id());
      reply.set_has_blob(true);
      return;
    }
    case v1::Request::kWatchTasks:
      return WatchTasks(coordinator, request, out);
    case v1::Request::kEndJob: {
      const auto& end = request.end_job();
      absl::Status status;
      if (shared_.check_end_job) status = shared_.check_end_job(coordinator, end.proof());
      if (status.ok()) status = coordinator.EndJob(end.reason(), end.force());
      shared_.frontend.NoteEpoch(coordinator.epoch());
      out.replies.push_back(MakeReply(request.id(), status));
      return;
    }
    case v1::Request::kFailJoining: {
      const auto& fail = request.fail_joining();
      const WaitId wait = coordinator.FailJoining(
          ReportedError(fail.code(), fail.message()), WaitTime(fail.timeout_ms()),
          [self = shared_from_this(), id = request.id()](const absl::Status& status) {
            self->delivery_->Send(MakeReply(id, status));
          });
      out.waits.emplace_back(request.id(), wait);
      return;
    }
    case v1::Request::kWatchJoining: {
      const WaitId wait = coordinator.WatchJoining(
          task_, [self = shared_from_this(), id = request.id()](const absl::Status& status) {
            self->delivery_->Send(MakeReply(id, status));
          });
      out.waits.emplace_back(request.id(), wait);
      return;
    }
    case v1::Request::OP_NOT_SET:
      out.replies.push_back(MakeReply(
          request.id(), absl::UnimplementedError("this coordinator does not know the request")));
      return;
    default:
      break;
  }
  if (task_ == kNoTask) {
    out.replies.push_back(MakeReply(
        request.id(), absl::FailedPreconditionError("this client did not say which node it is")));
    return;
  }
  ExecuteTask(coordinator, request, out);
}

void ControlRequests::ExecuteWithoutLock(RequestResults& out) {
  for (v1::Request* request : std::exchange(out.without_lock, {})) {
    const uint64_t id = request->id();
    switch (request->op_case()) {
      case v1::Request::kGetJobStatus: {
        const auto reply = std::find_if(out.replies.begin(), out.replies.end(),
                                        [id](const v1::Reply& r) { return r.request_id() == id; });
        if (reply == out.replies.end()) break;
        v1::JobStatus& status = *reply->mutable_job_status();
        if (shared_.tcp_store.server != nullptr) {
          const TcpStoreServer& server = *shared_.tcp_store.server;
          FillStoreScopes(server.Report(kMaxReportedWaits), server.Memory(), SteadyClock().Now(),
                          status);
        }
        if (shared_.lighthouse != nullptr) {
          FillLighthouse(shared_.lighthouse->Report(kMaxReportedReplicas), status);
        }
        if (shared_.elastic != nullptr) FillElasticRuns(shared_.elastic->Report(), status);
        break;
      }
      case v1::Request::kOpenStore: {
        const absl::StatusOr<int> port = holds_.Open(request->open_store().scope());
        v1::Reply& reply = out.replies.emplace_back(MakeReply(id, port.status()));
        if (port.ok()) reply.set_port(*port);
        break;
      }
      case v1::Request::kCloseStore:
        out.replies.push_back(MakeReply(id, holds_.Close(request->close_store().scope())));
        break;
      default:
        ListStore(*request, out);
        break;
    }
  }
}

void ControlRequests::ListStore(const v1::Request& request, RequestResults& out) {
  const auto& list = request.list_store();
  absl::StatusOr<std::vector<StoreEntry>> entries =
      absl::UnimplementedError("this coordinator serves no PyTorch stores");
  if (shared_.tcp_store.server != nullptr) {
    const auto limit = static_cast<size_t>(std::max<int64_t>(list.limit(), 0));
    entries = shared_.tcp_store.server->List(list.scope(), list.prefix(), limit);
  }
  v1::Reply reply = MakeReply(request.id(), entries.status());
  SharedBytes shared;
  if (entries.ok()) out.behind += FillEntries(*entries, !list.keys_only(), reply, shared);
  if (!shared.values.empty()) out.shared.emplace_back(out.replies.size(), std::move(shared));
  out.replies.push_back(std::move(reply));
}

void ControlRequests::Cancel(Coordinator& coordinator, const v1::Request& request,
                             RequestResults& out) {
  const uint64_t target = request.cancel().request_id();
  // The session's own poll has id 0.
  if (target == 0) {
    out.replies.push_back(
        MakeReply(request.id(), absl::InvalidArgumentError("no request has the id 0")));
    return;
  }
  auto [wait, watch] = delivery_->Find(target);
  for (const auto& [id, fresh] : out.waits) {
    if (id == target) wait = fresh;
  }
  // Begun by an earlier request of the same frame, and not noted yet.
  const auto fresh_watch =
      std::find_if(out.watches.begin(), out.watches.end(),
                   [target](const auto& entry) { return entry.first == target; });
  if (fresh_watch != out.watches.end()) {
    watch = fresh_watch->second;
    out.watches.erase(fresh_watch);
  }
  const auto waits_to_join = std::find_if(
      after_joining_.begin(), after_joining_.end(),
      [target](const Enumeration& enumeration) { return enumeration.request_id == target; });
  if (waits_to_join != after_joining_.end()) {
    after_joining_.erase(waits_to_join);
    out.replies.push_back(MakeReply(
        target, CoordinationError(absl::CancelledError("the caller cancelled the wait"))));
  }
  if (watch.has_value()) {
    coordinator.store().RemoveWatch(*watch);
    out.replies.push_back(MakeReply(target, absl::CancelledError("the watch was cancelled")));
  }
  if (wait != kNoWait) coordinator.Cancel(wait);
  out.replies.push_back(MakeReply(request.id(), absl::OkStatus()));
}

void ControlRequests::WatchTasks(Coordinator& coordinator, const v1::Request& request,
                                 RequestResults& out) {
  if (!BeginTableWait(coordinator, request, out)) return;
  const WaitId wait = coordinator.WatchTasks(
      request.watch_tasks().version(), task_,
      [self = shared_from_this(), id = request.id(),
       since = request.watch_tasks().only_changed() ? request.watch_tasks().version() : -1](
          absl::StatusOr<Coordinator::TablePtr> table) {
        --self->table_waits_;
        v1::Reply reply = MakeReply(id, table.status());
        if (table.ok()) {
          reply.set_version((*table)->version);
          std::vector<const TaskInfo*> changed;
          for (const TaskInfo& info : (*table)->tasks) {
            if (info.version > since) changed.push_back(&info);
          }
          self->shared_.frontend.executor().Run([&](Coordinator& coordinator) {
            for (const TaskInfo* info : changed) {
              FillTaskInfo(coordinator, *info, *reply.add_tasks());
            }
          });
        }
        self->delivery_->Send(std::move(reply));
      });
  out.waits.emplace_back(request.id(), wait);
}

bool ControlRequests::BeginTableWait(const Coordinator& coordinator, const v1::Request& request,
                                     RequestResults& out) {
  constexpr size_t kTaskBytes = 64;
  if (table_waits_ >= kMaxTableWaits) {
    out.replies.push_back(
        MakeReply(request.id(), absl::ResourceExhaustedError(absl::StrCat(
                                    kMaxTableWaits,
                                    " calls of this client wait for news of tasks, the most "
                                    "that may at a time"))));
    return false;
  }
  ++table_waits_;
  out.behind += kTaskBytes * static_cast<size_t>(coordinator.jobs().size());
  return true;
}

void ControlRequests::PollForErrors(Coordinator& coordinator) {
  const WaitId wait =
      coordinator.PollForError(task_, [weak = delivery_->weak_from_this()](absl::Status error) {
        const auto delivery = weak.lock();
        if (delivery == nullptr || absl::IsCancelled(error)) return;
        v1::Event event;
        event.set_kind(v1::Event::JOB_ERROR);
        event.set_code(static_cast<int>(error.code()));
        event.set_message(std::string(error.message()));
        delivery->Send(std::move(event));
      });
  // Kept like a request, under an id that no request has.
  delivery_->Defer(coordinator, /*request_id=*/0, wait);
}

void ControlRequests::Enumerate(Coordinator& coordinator, Enumeration enumeration) {
  const WaitId wait = coordinator.EnumerateDevices(
      task_, std::move(enumeration.local), enumeration.timeout,
      [self = shared_from_this(),
       id = enumeration.request_id](absl::StatusOr<TopologyExchange::Result> result) {
        v1::Reply reply = MakeReply(id, result.status());
        if (!result.ok()) return self->delivery_->Send(std::move(reply));
        reply.set_has_blob(true);
        const SharedBytes shared{.blob = self->shared_.blobs.SliceOf(*result), .values = {}};
        self->delivery_->Send(std::move(reply), &shared);
      });
  delivery_->Defer(coordinator, enumeration.request_id, wait);
}

void ControlRequests::Register(Coordinator& coordinator, const v1::Request& request,
                               RequestResults& out) {
  Registration registration{.task = task_,
                            .incarnation = Incarnation(node_.incarnation()),
                            .recoverable = node_.recoverable()};
  if (request.register_().timeout_ms() > 0) {
    registration.own_timeout = WaitTime(request.register_().timeout_ms());
  }
  registration.facts = {.service = "control",
                        .observed_address = observed_address_,
                        .host_name = node_.host_name(),
                        .boot_id = node_.boot_id(),
                        .process_id = node_.process_id(),
                        .error_address = node_.error_address()};
  shared_.frontend.ForgetPoll(task_);
  is_joining_ = true;
  const WaitId wait = coordinator.RegisterTask(
      std::move(registration), [self = shared_from_this(), id = request.id()](absl::Status status) {
        self->delivery_->Send(MakeReply(id, status));
        std::vector<Enumeration> refused;
        self->shared_.frontend.executor().Run([&](Coordinator& coordinator) {
          self->is_joining_ = false;
          std::vector<Enumeration> waiting = std::exchange(self->after_joining_, {});
          // The rest of this callback is for the incarnation that has joined, which may have ended
          // by now, as may the job. Another incarnation of the task has its own poll and devices.
          const bool is_same_incarnation = coordinator.membership().task(self->task_).incarnation ==
                                           Incarnation(self->node_.incarnation());
          if (status.ok() && !is_same_incarnation) {
            status = CoordinationError(absl::AbortedError(
                "another incarnation of the node replaced it before its next request"));
          }
          if (!status.ok()) {
            refused = std::move(waiting);
            return;
          }
          // Now that it has joined, heartbeats are expected.
          self->last_heartbeat_ = absl::ToUnixNanos(SteadyClock().Now());
          self->epoch_ = coordinator.epoch();
          self->PollForErrors(coordinator);
          for (Enumeration& enumeration : waiting) {
            self->Enumerate(coordinator, std::move(enumeration));
          }
        });
        for (const Enumeration& enumeration : refused) {
          self->delivery_->Send(MakeReply(enumeration.request_id, status));
        }
      });
  shared_.frontend.NoteEpoch(coordinator.epoch());
  out.waits.emplace_back(request.id(), wait);
}

void ControlRequests::Barrier(Coordinator& coordinator, const v1::Request& request,
                              RequestResults& out) {
  const uint64_t id = request.id();
  const auto& barrier = request.barrier();
  BarrierArrival arrival{.id = barrier.id(),
                         .counter = barrier.counter(),
                         .timeout = WaitTime(barrier.timeout_ms()),
                         .caller = task_};
  for (const int32_t node : barrier.nodes()) arrival.tasks.push_back(TaskId(node));
  if (coordinator.IsOwnBarrier(arrival.id)) {
    out.replies.push_back(MakeReply(
        id, absl::InvalidArgumentError(absl::StrCat(
                "barrier ", Quoted(arrival.id), " is the coordinator's own; take another name"))));
    return;
  }
  const WaitId wait = coordinator.Barrier(
      std::move(arrival), [self = shared_from_this(), id](const BarrierResult& result) {
        v1::Reply reply = MakeReply(id, result.status);
        reply.set_counter(result.counter);
        self->delivery_->Send(std::move(reply));
      });
  out.waits.emplace_back(id, wait);
}

void ControlRequests::GetAlive(Coordinator& coordinator, const v1::Request& request,
                               RequestResults& out) {
  const uint64_t id = request.id();
  if (!BeginTableWait(coordinator, request, out)) return;
  std::vector<TaskId> tasks;
  for (const int32_t node : request.get_alive().nodes()) tasks.push_back(TaskId(node));
  const WaitId wait = coordinator.GetAliveTasks(
      task_, std::move(tasks),
      [self = shared_from_this(), id](absl::StatusOr<std::vector<TaskInfo>> alive) {
        --self->table_waits_;
        v1::Reply reply = MakeReply(id, alive.status());
        if (alive.ok()) {
          for (const TaskInfo& info : *alive) {
            v1::TaskInfo& out = *reply.add_tasks();
            out.set_node_id(info.task.value());
            out.set_state(v1::TASK_STATE_CONNECTED);
            out.set_incarnation(info.incarnation.value());
          }
        }
        self->delivery_->Send(std::move(reply));
      });
  out.waits.emplace_back(id, wait);
}

void ControlRequests::ExecuteTask(Coordinator& coordinator, v1::Request& request,
                                  RequestResults& out) {
  const uint64_t id = request.id();
  const auto reply_with = [self = shared_from_this(), id](absl::Status status) {
    if (status.ok()) self->has_left_ = true;
    self->delivery_->Send(MakeReply(id, status));
  };
  switch (request.op_case()) {
    case v1::Request::kRegister:
      return Register(coordinator, request, out);
    case v1::Request::kHeartbeat: {
      last_heartbeat_ = absl::ToUnixNanos(SteadyClock().Now());
      const absl::Status status = coordinator.Heartbeat(task_, Incarnation(node_.incarnation()),
                                                        request.heartbeat().progress());
      out.replies.push_back(MakeReply(id, status));
      return;
    }
    case v1::Request::kBarrier:
      return Barrier(coordinator, request, out);
    case v1::Request::kCancelBarrier: {
      const auto& cancel = request.cancel_barrier();
      if (coordinator.IsOwnBarrier(cancel.id())) {
        out.replies.push_back(
            MakeReply(id, absl::InvalidArgumentError(
                              absl::StrCat("barrier ", Quoted(cancel.id()),
                                           " is the coordinator's own and cannot be cancelled"))));
        return;
      }
      out.replies.push_back(
          MakeReply(id, coordinator.CancelBarrier(cancel.id(), cancel.counter())));
      return;
    }
    case v1::Request::kGetAlive:
      return GetAlive(coordinator, request, out);
    case v1::Request::kEnumerate: {
      absl::StatusOr<LocalTopology> local =
          ParseLocalTopology(request.enumerate().local_topology());
      if (!local.ok()) {
        out.replies.push_back(MakeReply(id, local.status()));
        return;
      }
      const int64_t timeout_ms = request.enumerate().timeout_ms();
      Enumeration enumeration{
          id, *std::move(local),
          timeout_ms > 0 ? WaitTime(timeout_ms) : coordinator.options().enumerate_timeout};
      if (is_joining_) {
        after_joining_.push_back(std::move(enumeration));
      } else {
        Enumerate(coordinator, std::move(enumeration));
      }
      return;
    }
    case v1::Request::kReportError: {
      const absl::Status error =
          ReportedError(request.report_error().code(), request.report_error().message());
      out.replies.push_back(MakeReply(id, coordinator.ReportError(task_, error)));
      return;
    }
    case v1::Request::kShutdown: {
      const WaitId wait = coordinator.ShutdownTask(task_, reply_with);
      out.waits.emplace_back(id, wait);
      return;
    }
    case v1::Request::kLeave: {
      const absl::Status status = coordinator.LeaveTask(task_, Incarnation(node_.incarnation()));
      if (status.ok()) has_left_ = true;
      out.replies.push_back(MakeReply(id, status));
      return;
    }
    default:
      out.replies.push_back(
          MakeReply(id, absl::UnimplementedError("this coordinator does not know the request")));
      return;
  }
}

}  // namespace ferry::coord
