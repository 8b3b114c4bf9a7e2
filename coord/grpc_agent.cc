// SPDX-License-Identifier: Apache-2.0
// The agent's calls, each a request and the reading of its reply.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "coord/agent.h"
#include "coord/errors.h"
#include "coord/grpc_agent_link.h"
#include "coord/grpc_agent_status.h"
#include "coord/grpc_error_report.h"
#include "topology/topology_proto.h"

namespace ferry::coord {
namespace {

// Of calls that do not wait for anybody.
constexpr absl::Duration kQuickTimeout = absl::Seconds(30);
// As long as the longest wait that the coordinator grants.
constexpr absl::Duration kLongestWait = absl::Hours(24 * 7);

// "key \"a\"" or "3 keys, first \"a\"", for messages of the agent itself.
std::string DescribeKeys(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no keys";
  if (keys.size() == 1) return absl::StrCat("key ", Quoted(keys[0]));
  return absl::StrCat(keys.size(), " keys, first ", Quoted(keys[0]));
}

absl::Status StatusOf(const v1::Reply& reply) {
  if (reply.code() == 0) return absl::OkStatus();
  return WithMissingTasks(
      absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message()),
      reply.missing_nodes());
}

// The reply if it came and is good, else what went wrong.
absl::StatusOr<v1::Reply> Checked(absl::StatusOr<v1::Reply> reply) {
  if (!reply.ok()) return reply;
  if (absl::Status status = StatusOf(*reply); !status.ok()) return status;
  return reply;
}

uint64_t RandomIncarnation() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

int64_t Milliseconds(absl::Duration timeout) {
  // Rounded up: zero would mean "do not wait".
  if (timeout <= absl::ZeroDuration()) return 0;
  return std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kLongestWait)));
}

}  // namespace

class Agent::Impl final {
 public:
  explicit Impl(AgentOptions options) : options_(std::move(options)) {}

  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Sends `request` and waits for the good reply.
  absl::StatusOr<v1::Reply> Ask(v1::Request request, absl::Duration timeout, std::string what) {
    absl::Notification answered;
    absl::StatusOr<v1::Reply> answer = absl::UnknownError("no answer");
    link_->Call(std::move(request), std::min(timeout, kLongestWait), std::move(what),
                [&](absl::StatusOr<v1::Reply> reply) {
                  answer = std::move(reply);
                  answered.Notify();
                });
    answered.WaitForNotification();
    return Checked(std::move(answer));
  }

  AgentLink& link() { return *link_; }
  const v1::Welcome& welcome() const { return welcome_; }
  uint64_t incarnation() const { return options_.incarnation; }

  // The use of the barrier that is next, taken; FAILED_PRECONDITION while another call waits there.
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
    // The coordinator says which use it is at; without its word the count stays.
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
  v1::Welcome welcome_;
  absl::Mutex mu_;
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, BarrierUse> barriers_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Service> error_service_;
  std::unique_ptr<grpc::Server> error_server_;
  // Last, so that it goes first: its callbacks use the rest.
  std::unique_ptr<AgentLink> link_;
};

void Agent::Impl::Fail(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(has_failed_, true)) return;
  }
  if (options_.on_error) options_.on_error(why);
}

absl::Status Agent::Impl::Connect() {
  if (options_.coordinator.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the coordinator's address ", Quoted(options_.coordinator), " is not HOST:PORT"));
  }
  if (options_.incarnation == 0) options_.incarnation = RandomIncarnation();
  AgentLinkOptions link;
  link.coordinator = options_.coordinator;
  link.connect_timeout = options_.connect_timeout;
  link.lost_timeout = options_.lost_timeout;
  link.on_lost = [this](absl::Status why) { Fail(why); };
  link.on_event = [this](const v1::Event& event) {
    Fail(absl::Status(static_cast<absl::StatusCode>(event.code()), event.message()));
  };
  std::string error_address;
  if (!options_.error_listen.empty()) {
    error_service_ = MakeErrorReportService([this](absl::Status error) { Fail(error); });
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options_.error_listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(error_service_.get());
    error_server_ = builder.BuildAndStart();
    if (error_server_ == nullptr || port == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options_.error_listen, " for error reports"));
    }
    // With the port that was found, if any was welcome.
    error_address =
        absl::StrCat(options_.error_listen.substr(0, options_.error_listen.rfind(':')), ":", port);
  }
  if (options_.node_id.has_value()) {
    v1::Node& node = *link.hello.mutable_node();
    node.set_node_id(*options_.node_id);
    node.set_incarnation(options_.incarnation);
    node.set_host_name(options_.host_name);
    node.set_boot_id(options_.boot_id);
    node.set_process_id(getpid());
    for (const std::string& uuid : options_.gpu_uuids) node.add_gpu_uuids(uuid);
    node.set_recoverable(options_.recoverable);
    node.set_error_address(error_address);
  }
  const absl::Time deadline = SteadyClock().Now() + options_.connect_timeout;
  link_ = std::make_unique<AgentLink>(std::move(link));
  FERRY_ASSIGN_OR_RETURN(welcome_, link_->WaitUntilAttached());
  if (!options_.node_id.has_value()) return absl::OkStatus();
  const absl::Duration left = std::max(deadline - SteadyClock().Now(), absl::Milliseconds(1));
  v1::Request request;
  request.mutable_register_()->set_timeout_ms(Milliseconds(left));
  FERRY_RETURN_IF_ERROR(Ask(std::move(request), left, "all nodes to join").status());
  link_->StartHeartbeats();
  return absl::OkStatus();
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() = default;

absl::StatusOr<std::unique_ptr<Agent>> Agent::Connect(AgentOptions options) {
  auto agent = std::unique_ptr<Agent>(new Agent(std::make_unique<Impl>(std::move(options))));
  FERRY_RETURN_IF_ERROR(agent->impl_->Connect());
  return agent;
}

int Agent::num_nodes() const { return impl_->welcome().num_nodes(); }
const std::string& Agent::observed_address() const { return impl_->welcome().observed_address(); }
uint64_t Agent::incarnation() const { return impl_->incarnation(); }

absl::StatusOr<std::string> Agent::Get(absl::string_view key, absl::Duration timeout) {
  FERRY_ASSIGN_OR_RETURN(std::vector<std::string> values, GetAll({std::string(key)}, timeout));
  return std::move(values[0]);
}

absl::StatusOr<std::vector<std::string>> Agent::GetAll(std::vector<std::string> keys,
                                                       absl::Duration timeout) {
  absl::Notification answered;
  absl::StatusOr<std::vector<std::string>> values;
  GetAllAsync(std::move(keys), timeout, [&](absl::StatusOr<std::vector<std::string>> result) {
    values = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();
  return values;
}

void Agent::GetAllAsync(std::vector<std::string> keys, absl::Duration timeout,
                        Callback<std::vector<std::string>> done) {
  std::string what = DescribeKeys(keys);
  v1::Request request;
  request.mutable_get()->set_timeout_ms(Milliseconds(timeout));
  for (std::string& key : keys) request.mutable_get()->add_keys(std::move(key));
  impl_->link().Call(std::move(request), std::min(timeout, kLongestWait), std::move(what),
                     [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                       reply = Checked(std::move(reply));
                       if (!reply.ok()) return std::move(done)(reply.status());
                       std::vector<std::string> values;
                       for (v1::KeyValue& entry : *reply->mutable_entries()) {
                         values.push_back(std::move(*entry.mutable_value()));
                       }
                       std::move(done)(std::move(values));
                     });
}

absl::StatusOr<std::string> Agent::TryGet(absl::string_view key) {
  return Get(key, absl::ZeroDuration());
}

absl::Status Agent::Set(absl::string_view key, absl::string_view value, bool overwrite) {
  return SetAll({{std::string(key), std::string(value)}}, overwrite);
}

absl::Status Agent::SetAll(std::vector<std::pair<std::string, std::string>> entries,
                           bool overwrite) {
  absl::Notification answered;
  absl::Status status;
  SetAllAsync(std::move(entries), overwrite, [&](absl::Status result) {
    status = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();
  return status;
}

void Agent::SetAllAsync(std::vector<std::pair<std::string, std::string>> entries, bool overwrite,
                        StatusCallback done) {
  v1::Request request;
  request.mutable_put()->set_overwrite(overwrite);
  for (auto& [key, value] : entries) {
    v1::KeyValue& entry = *request.mutable_put()->add_entries();
    entry.set_key(std::move(key));
    entry.set_value(std::move(value));
  }
  impl_->link().Call(std::move(request), kQuickTimeout, "a set to be confirmed",
                     [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                       std::move(done)(Checked(std::move(reply)).status());
                     });
}

absl::Status Agent::Delete(absl::string_view key, bool subtree) {
  v1::Request request;
  request.mutable_delete_()->add_keys(std::string(key));
  request.mutable_delete_()->set_recursive(subtree);
  return impl_->Ask(std::move(request), kQuickTimeout, "a delete to be confirmed").status();
}

absl::StatusOr<int64_t> Agent::Increment(absl::string_view key, int64_t increment) {
  v1::Request request;
  request.mutable_increment()->set_key(std::string(key));
  request.mutable_increment()->set_increment(increment);
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply, impl_->Ask(std::move(request), kQuickTimeout,
                                                           "an increment to be confirmed"));
  int64_t number = 0;
  if (reply.entries_size() != 1 || !absl::SimpleAtoi(reply.entries(0).value(), &number)) {
    return absl::InternalError("the coordinator answered an increment without a number");
  }
  return number;
}

absl::StatusOr<CompareAndSetResult> Agent::CompareAndSet(absl::string_view key,
                                                         const std::optional<std::string>& expected,
                                                         absl::string_view desired) {
  v1::Request request;
  v1::CompareAndSet& cas = *request.mutable_compare_and_set();
  cas.set_key(std::string(key));
  cas.set_expect_absent(!expected.has_value());
  if (expected.has_value()) cas.set_expected(*expected);
  cas.set_desired(std::string(desired));
  absl::Notification answered;
  absl::StatusOr<v1::Reply> reply = absl::UnknownError("no answer");
  // Not Ask: ABORTED with the present entry is an answer here, not an error.
  impl_->link().Call(std::move(request), kQuickTimeout, "a compare-and-set to be confirmed",
                     [&](absl::StatusOr<v1::Reply> result) {
                       reply = std::move(result);
                       answered.Notify();
                     });
  answered.WaitForNotification();
  if (!reply.ok()) return reply.status();
  CompareAndSetResult result;
  result.was_set = reply->code() == 0;
  if (!result.was_set && reply->code() != static_cast<int>(absl::StatusCode::kAborted)) {
    return StatusOf(*reply);
  }
  if (reply->entries_size() > 0) result.value = reply->entries(0).value();
  return result;
}

absl::StatusOr<std::vector<KeyValue>> Agent::List(absl::string_view prefix, bool keys_only) {
  v1::Request request;
  request.mutable_list()->set_prefix(std::string(prefix));
  request.mutable_list()->set_keys_only(keys_only);
  FERRY_ASSIGN_OR_RETURN(v1::Reply reply,
                         impl_->Ask(std::move(request), kQuickTimeout, "a listing"));
  std::vector<KeyValue> entries;
  for (v1::KeyValue& entry : *reply.mutable_entries()) {
    entries.push_back(
        {std::move(*entry.mutable_key()), std::move(*entry.mutable_value()), entry.revision()});
  }
  return entries;
}

namespace {

class AgentWatchImpl final : public AgentWatch {
 public:
  AgentWatchImpl(AgentLink& link, uint64_t id) : link_(link), id_(id) {}
  ~AgentWatchImpl() override { link_.Unsubscribe(id_); }

 private:
  AgentLink& link_;
  const uint64_t id_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AgentWatch>> Agent::Watch(
    absl::string_view prefix, std::function<void(const KeyChange&)> on_change) {
  v1::Request request;
  request.mutable_watch()->set_prefix(std::string(prefix));
  request.mutable_watch()->set_with_existing(true);
  const uint64_t id = impl_->link().Subscribe(
      std::move(request), [on_change = std::move(on_change)](const v1::Event& event) {
        KeyChange change;
        change.deleted = event.kind() == v1::Event::KEY_DELETED;
        change.entry = {event.entry().key(), event.entry().value(), event.entry().revision()};
        on_change(change);
      });
  return std::make_unique<AgentWatchImpl>(impl_->link(), id);
}

absl::Status Agent::Barrier(absl::string_view id, absl::Duration timeout, std::vector<int> nodes) {
  absl::Notification answered;
  absl::Status status;
  BarrierAsync(id, timeout, std::move(nodes), [&](absl::Status result) {
    status = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();
  return status;
}

void Agent::BarrierAsync(absl::string_view id, absl::Duration timeout, std::vector<int> nodes,
                         StatusCallback done) {
  const std::string name(id);
  const absl::StatusOr<int64_t> counter = impl_->BeginBarrier(name);
  if (!counter.ok())
    return impl_->link().Defer([done = std::move(done), why = counter.status()]() mutable {
      std::move(done)(std::move(why));
    });
  v1::Request request;
  v1::Barrier& barrier = *request.mutable_barrier();
  barrier.set_id(name);
  barrier.set_timeout_ms(Milliseconds(timeout));
  barrier.set_counter(*counter);
  for (const int node : nodes) barrier.add_nodes(node);
  impl_->link().Call(
      std::move(request), std::min(timeout, kLongestWait), absl::StrCat("barrier ", Quoted(name)),
      [impl = impl_.get(), name, done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
        impl->EndBarrier(name, reply);
        std::move(done)(Checked(std::move(reply)).status());
      });
}

absl::Status Agent::CancelBarrier(absl::string_view id) {
  FERRY_ASSIGN_OR_RETURN(const int64_t counter, impl_->WaitingUse(std::string(id)));
  v1::Request request;
  request.mutable_cancel_barrier()->set_id(std::string(id));
  request.mutable_cancel_barrier()->set_counter(counter);
  return impl_->Ask(std::move(request), kQuickTimeout, "a cancellation to be confirmed").status();
}

absl::StatusOr<std::vector<std::pair<int, uint64_t>>> Agent::AliveNodes(std::vector<int> nodes,
                                                                        absl::Duration timeout) {
  v1::Request request;
  for (const int node : nodes) request.mutable_get_alive()->add_nodes(node);
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply, impl_->Ask(std::move(request), timeout,
                                                           "the nodes that are alive to ask"));
  std::vector<std::pair<int, uint64_t>> alive;
  for (const v1::TaskInfo& task : reply.tasks()) {
    alive.emplace_back(task.node_id(), task.incarnation());
  }
  return alive;
}

absl::StatusOr<GlobalTopology> Agent::Enumerate(const LocalTopology& local,
                                                absl::Duration timeout) {
  v1::Request request;
  request.mutable_enumerate()->set_local_topology(SerializeTopology(local));
  request.mutable_enumerate()->set_timeout_ms(Milliseconds(timeout));
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->Ask(std::move(request), timeout, "the devices of all nodes"));
  return ParseGlobalTopology(reply.message());
}

absl::StatusOr<GlobalTopology> Agent::Topology() {
  v1::Request request;
  request.mutable_get_topology();
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->Ask(std::move(request), kQuickTimeout, "the topology"));
  return ParseGlobalTopology(reply.message());
}

absl::StatusOr<JobStatus> Agent::Status() {
  v1::Request request;
  request.mutable_get_job_status();
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->Ask(std::move(request), kQuickTimeout, "the job's status"));
  return ReadJobStatus(reply.job_status());
}

void Agent::SetProgress(uint64_t progress) { impl_->link().SetProgress(progress); }

absl::Status Agent::ReportError(const absl::Status& error) {
  v1::Request request;
  request.mutable_report_error()->set_code(static_cast<int>(error.code()));
  request.mutable_report_error()->set_message(std::string(error.message()));
  return impl_->Ask(std::move(request), kQuickTimeout, "an error report to be confirmed").status();
}

absl::Status Agent::Shutdown() {
  v1::Request request;
  request.mutable_shutdown();
  const absl::Status status =
      impl_->Ask(std::move(request), kLongestWait, "all nodes to shut down").status();
  if (status.ok()) impl_->link().StopHeartbeats();
  return status;
}

absl::Status Agent::Leave() {
  impl_->link().StopHeartbeats();
  v1::Request request;
  request.mutable_leave();
  return impl_->Ask(std::move(request), kQuickTimeout, "leaving to be confirmed").status();
}

}  // namespace ferry::coord
