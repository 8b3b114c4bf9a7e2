// SPDX-License-Identifier: Apache-2.0
// The seven methods of xla.DistributedRuntimeService.
#include "coord/server/runtime_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "coord/core/errors.h"
#include "coord/server/unary_service.h"
#include "coord/wire/errors.h"
#include "coord/wire/xla_topology_proto.h"
#include "proto/xla_distributed_runtime.pb.h"

namespace ferry::coord {
namespace {

constexpr int kProtocolVersion = 3;
// The default of max_missing_heartbeats; a client's own value is not transmitted.
// Source: DistributedRuntimeClient::Options in XLA's pjrt/distributed/client.h.
constexpr int kBeatsPerTimeout = 10;

// All clients of a job share one session id, derived from the coordinator's incarnation in that
// job.
uint64_t SessionId(Incarnation of_coordinator) {
  return of_coordinator.value() ^ 0x9e3779b97f4a7c15u;
}

// A session is checked in the critical section that acts on it: between two of them the job may
// end and the next one begin, in which calls of the earlier job must not act.
class RuntimeService final : public UnaryService {
 public:
  RuntimeService(Frontend& frontend, GenericMethodTable& rare)
      : UnaryService(frontend, rare), frontend_(frontend) {
    constexpr bool kOften = true;
    Add("Connect", &RuntimeService::Connect);
    Add("EnumerateDevices", &RuntimeService::EnumerateDevices);
    Add("Heartbeat", &RuntimeService::Heartbeat, kOften);
    Add("Shutdown", &RuntimeService::Shutdown);
    Add("KeyValueGet", &RuntimeService::KeyValueGet, kOften);
    Add("KeyValueSet", &RuntimeService::KeyValueSet, kOften);
    Add("WaitAtBarrier", &RuntimeService::WaitAtBarrier, kOften);
  }

 private:
  template <typename Request>
  void Add(absl::string_view name, void (RuntimeService::*method)(UnaryCall&, const Request&),
           bool is_frequent = false) {
    AddHandler(absl::StrCat("/xla.DistributedRuntimeService/", name), is_frequent,
               [this, method](UnaryCall& call, grpc::ByteBuffer& bytes) {
                 Request request;
                 if (!ParseMessage(bytes, request)) {
                   return call.Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                                   "the request cannot be parsed"));
                 }
                 (this->*method)(call, request);
               });
  }

  // Returns the error for a call of another session; these clients know one code for all failures
  // of the job, ABORTED.
  static absl::Status CheckSession(const Coordinator& coordinator, uint64_t session_id) {
    if (coordinator.is_stopped()) return absl::AbortedError("the coordinator has stopped");
    if (session_id != SessionId(coordinator.incarnation())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "session ", session_id, " is not the one of this coordinator; connect again"));
    }
    if (!coordinator.job_error().ok()) {
      return absl::AbortedError(
          absl::StrCat("missed heartbeat or failed task: ", coordinator.job_error().message()));
    }
    if (!coordinator.everyone_has_registered()) {
      return absl::FailedPreconditionError("not every node has connected");
    }
    return absl::OkStatus();
  }

  // These clients expect ABORTED for any failure inside the job.
  static absl::Status AsRuntimeError(const absl::Status& status) {
    if (absl::IsInternal(status)) return absl::AbortedError(status.message());
    return status;
  }

  void Connect(UnaryCall& call, const ::xla::ConnectRequest& request) {
    if (request.protocol_version() != kProtocolVersion) {
      return call.Finish(ToGrpcStatus(absl::InvalidArgumentError(
          absl::StrCat("protocol version ", request.protocol_version(),
                       " is not spoken here, only ", kProtocolVersion))));
    }
    if (request.node_id() < 0) {
      return call.Finish(ToGrpcStatus(
          absl::InvalidArgumentError(absl::StrCat("node id ", request.node_id(), " is negative"))));
    }
    Registration registration;
    registration.task = TaskId(request.node_id());
    registration.incarnation = Incarnation(request.client_id());
    registration.waits_for_all = true;
    registration.own_timeout = absl::Milliseconds(request.timeout_milliseconds());
    registration.facts.service = "drs";
    registration.beats_per_timeout = kBeatsPerTimeout;
    registration.facts.observed_address = call.peer();
    call.Park(
        frontend_.executor(),
        [&](Coordinator& coordinator, DeferredCall* parked) -> absl::StatusOr<WaitId> {
          if (!coordinator.jobs().Contains(registration.task)) {
            return absl::FailedPreconditionError(absl::StrCat("node id ", request.node_id(),
                                                              " is not one of 0 to ",
                                                              coordinator.jobs().size() - 1));
          }
          const Task& task = coordinator.membership().task(registration.task);
          // These clients send a new client id with every attempt; a connected one stays
          // connected.
          if (task.state != TaskState::kDisconnected) {
            return absl::AbortedError(absl::StrCat(
                "the cluster is not initializing: node ", request.node_id(),
                task.state == TaskState::kConnected ? " is connected already" : " has failed"));
          }
          frontend_.NoteCaller(registration.facts.observed_address, registration.task,
                               registration.incarnation);
          frontend_.ForgetPoll(registration.task);
          // The session of the job that is joined here, even if another job has begun when the
          // response is built.
          const auto session = std::make_shared<uint64_t>(0);
          const WaitId wait = coordinator.RegisterTask(
              std::move(registration), [parked, session](absl::Status status) {
                if (absl::IsAlreadyExists(status)) {
                  status =
                      absl::AbortedError(absl::StrCat("Duplicate node ID: ", status.message()));
                }
                if (!status.ok()) return parked->Finish(ToGrpcStatus(AsRuntimeError(status)));
                ::xla::ConnectResponse response;
                response.set_session_id(*session);
                parked->Reply(response);
              });
          *session = SessionId(coordinator.incarnation());
          frontend_.NoteEpoch(coordinator.epoch());
          return wait;
        });
  }

  void EnumerateDevices(UnaryCall& call, const ::xla::EnumerateDevicesRequest& request) {
    absl::StatusOr<LocalTopology> local = FromXlaTopology(request.local_topology());
    const bool legacy = IsLegacyXlaTopology(request.local_topology());
    call.Park(frontend_.executor(),
              [&](Coordinator& coordinator, DeferredCall* parked) -> absl::StatusOr<WaitId> {
                absl::Status status = CheckSession(coordinator, request.session_id());
                if (!status.ok()) return status;
                if (!local.ok()) return local.status();
                const TaskId node(local->node_id);
                const std::vector<TaskId> callers = frontend_.CallersAt(parked->peer());
                if (std::find(callers.begin(), callers.end(), node) == callers.end()) {
                  return absl::InvalidArgumentError(
                      absl::StrCat("the topology says node ", node.value(),
                                   ", which is not the node of this connection"));
                }
                return coordinator.EnumerateDevices(
                    node, *std::move(local), coordinator.options().enumerate_timeout,
                    [this, parked, legacy](absl::StatusOr<TopologyExchange::Result> result) {
                      if (!result.ok()) return parked->Finish(ToGrpcStatus(result.status()));
                      ::xla::EnumerateDevicesResponse response;
                      const absl::StatusOr<std::string> global = Globalize(*result, legacy);
                      if (!global.ok()) return parked->Finish(ToGrpcStatus(global.status()));
                      response.set_global_topology(*global);
                      parked->Reply(response);
                    },
                    request.local_topology());
              });
  }

  // The answer to all tasks, built once per numbering. For a node that used this service it
  // contains the node's own message, so that nothing is lost in translation.
  absl::StatusOr<std::string> Globalize(const TopologyExchange::Result& result, bool legacy)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (result != merged_from_) {
      merged_from_ = result;
      merged_.clear();
    }
    if (const auto made = merged_.find(legacy); made != merged_.end()) return made->second;
    std::vector<std::string> locals;
    for (const LocalTopology& node : result->topology.nodes()) {
      const std::string& told = result->as_told[static_cast<size_t>(node.node_id)];
      locals.push_back(told.empty() ? ToXlaTopology(node) : told);
    }
    absl::StatusOr<std::string> merged = MergeXlaTopologies(locals, legacy);
    if (merged.ok()) merged_.emplace(legacy, *merged);
    return merged;
  }

  void Heartbeat(UnaryCall& call, const ::xla::HeartbeatRequest& request) {
    const absl::Status status =
        frontend_.executor().Run([&](Coordinator& coordinator) -> absl::Status {
          if (absl::Status session = CheckSession(coordinator, request.session_id());
              !session.ok()) {
            return session;
          }
          const TaskId task(request.node_id());
          if (!coordinator.jobs().Contains(task)) {
            return absl::InvalidArgumentError(
                absl::StrCat("node id ", request.node_id(), " is not in the cluster"));
          }
          return coordinator.Heartbeat(task, coordinator.membership().task(task).incarnation);
        });
    if (!status.ok()) return call.Finish(ToGrpcStatus(AsRuntimeError(status)));
    return call.Reply(::xla::HeartbeatResponse());
  }

  // These clients do not identify themselves on shutdown; the connection does. Of several nodes on
  // one connection each call shuts down the next; all of them have to call anyway. Only for a call
  // of this session: another one must not consume a node's call. On the executor.
  TaskId TakeTurn(const std::string& address) {
    const std::vector<TaskId> callers = frontend_.CallersAt(address);
    if (callers.empty()) return kNoTask;
    if (callers.size() == 1) return callers[0];
    return callers[turns_[address]++ % callers.size()];
  }

  void Shutdown(UnaryCall& call, const ::xla::ShutdownRequest& request) {
    call.Park(frontend_.executor(),
              [&](Coordinator& coordinator, DeferredCall* parked) -> absl::StatusOr<WaitId> {
                const absl::Status status = CheckSession(coordinator, request.session_id());
                if (!status.ok()) return status;
                const TaskId caller = TakeTurn(parked->peer());
                if (caller == kNoTask) {
                  return absl::FailedPreconditionError(
                      "this connection has not connected a node, so there is none to shut down");
                }
                return coordinator.ShutdownTask(caller, [parked](absl::Status status) {
                  if (status.ok()) return parked->Reply(::xla::ShutdownResponse());
                  // A barrier timeout is DEADLINE_EXCEEDED here, any other failure ABORTED.
                  if (!GetMissingTasks(status).empty()) {
                    status = absl::DeadlineExceededError(status.message());
                  }
                  parked->Finish(ToGrpcStatus(AsRuntimeError(status)));
                });
              });
  }

  void KeyValueGet(UnaryCall& call, const ::xla::KeyValueGetRequest& request) {
    // Usually the key is present: then the call need not outlive its handler.
    std::optional<StoreEntry> present;
    const absl::Status session =
        frontend_.executor().Run([&](Coordinator& coordinator) -> absl::Status {
          absl::Status status = CheckSession(coordinator, request.session_id());
          if (status.ok()) present = coordinator.store().Find(request.key());
          return status;
        });
    if (!session.ok()) return call.Finish(ToGrpcStatus(session));
    if (present.has_value()) {
      ::xla::KeyValueGetResponse response;
      response.set_value(*present->value);
      return call.Reply(response);
    }
    const TaskId caller = frontend_.CallerAt(call.peer());
    call.Park(frontend_.executor(),
              [&](Coordinator& coordinator, DeferredCall* parked) -> absl::StatusOr<WaitId> {
                const absl::Status status = CheckSession(coordinator, request.session_id());
                if (!status.ok()) return status;
                return coordinator.GetKeys(
                    {request.key()}, caller, absl::Milliseconds(request.timeout_milliseconds()),
                    [parked, key = request.key()](absl::StatusOr<std::vector<StoreEntry>> found) {
                      if (absl::IsDeadlineExceeded(found.status()))
                        found = absl::NotFoundError(key);
                      if (!found.ok()) return parked->Finish(ToGrpcStatus(found.status()));
                      // `found` stays false, here and above, as these clients have always received
                      // it.
                      ::xla::KeyValueGetResponse response;
                      response.set_value(*found->front().value);
                      parked->Reply(response);
                    });
              });
  }

  void KeyValueSet(UnaryCall& call, const ::xla::KeyValueSetRequest& request) {
    const absl::Status status = frontend_.executor().Run([&](Coordinator& coordinator)
                                                             -> absl::Status {
      if (absl::Status session = CheckSession(coordinator, request.session_id()); !session.ok()) {
        return session;
      }
      return coordinator.store().Put(request.key(), request.value(), /*overwrite=*/true).status();
    });
    if (!status.ok()) return call.Finish(ToGrpcStatus(status));
    return call.Reply(::xla::KeyValueSetResponse());
  }

  void WaitAtBarrier(UnaryCall& call, const ::xla::WaitAtBarrierRequest& request) {
    call.Park(
        frontend_.executor(),
        [&](Coordinator& coordinator, DeferredCall* parked) -> absl::StatusOr<WaitId> {
          absl::Status status = CheckSession(coordinator, request.session_id());
          if (status.ok() && coordinator.barriers().IsOver(request.barrier_id())) {
            status = absl::FailedPreconditionError(
                "Calling WaitAtBarrier with the same id across barriers is not allowed. Please use "
                "unique barrier ids across barriers.");
          }
          if (!status.ok()) return status;
          return coordinator.Barrier(
              {.id = request.barrier_id(),
               .timeout = absl::Milliseconds(request.timeout_milliseconds()),
               .caller = TaskId(request.node_id())},
              [parked](const BarrierResult& result) {
                if (result.status.ok()) {
                  parked->Reply(::xla::WaitAtBarrierResponse());
                } else {
                  parked->Finish(ToGrpcStatus(AsRuntimeError(result.status)));
                }
              });
        });
  }

  Frontend& frontend_;
  // Only on the executor. Counts Shutdown calls by connection, where several nodes share one.
  absl::flat_hash_map<std::string, size_t> turns_;

  absl::Mutex mu_;
  // Globalize's results, by legacy, and their source.
  TopologyExchange::Result merged_from_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<bool, std::string> merged_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<UnaryService> MakeRuntimeService(Frontend& frontend, GenericMethodTable& rare) {
  return std::make_unique<RuntimeService>(frontend, rare);
}

}  // namespace ferry::coord
