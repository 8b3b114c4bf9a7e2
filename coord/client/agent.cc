// SPDX-License-Identifier: Apache-2.0
// The agent's calls: each sends a request and reads its reply.
#include "coord/client/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"

#include "base/status_macros.h"
#include "coord/client/agent_impl.h"
#include "coord/client/agent_status.h"
#include "topology/topology_proto.h"

namespace ferry::coord {
namespace {

v1::Request BarrierRequest(const std::string& name, int64_t counter, absl::Duration timeout,
                           const std::vector<int>& nodes) {
  v1::Request request;
  v1::Barrier& barrier = *request.mutable_barrier();
  barrier.set_id(name);
  barrier.set_timeout_ms(Milliseconds(timeout));
  barrier.set_counter(counter);
  for (const int node : nodes) barrier.add_nodes(node);
  return request;
}

// "key \"a\"" or "3 keys, first \"a\"", for messages of the agent itself.
std::string DescribeKeys(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no keys";
  if (keys.size() == 1) return absl::StrCat("key ", Quoted(keys[0]));
  return absl::StrCat(keys.size(), " keys, first ", Quoted(keys[0]));
}

v1::Request GetRequest(std::vector<std::string> keys, absl::Duration timeout) {
  v1::Request request;
  request.mutable_get()->set_timeout_ms(Milliseconds(timeout));
  for (std::string& key : keys) request.mutable_get()->add_keys(std::move(key));
  return request;
}

absl::StatusOr<std::vector<std::string>> ValuesOf(absl::StatusOr<v1::Reply> reply) {
  FERRY_ASSIGN_OR_RETURN(v1::Reply good, Checked(std::move(reply)));
  std::vector<std::string> values;
  for (v1::KeyValue& entry : *good.mutable_entries()) {
    values.push_back(std::move(*entry.mutable_value()));
  }
  return values;
}

absl::StatusOr<std::vector<KeyValue>> EntriesOf(absl::StatusOr<v1::Reply> reply) {
  FERRY_ASSIGN_OR_RETURN(v1::Reply good, std::move(reply));
  std::vector<KeyValue> entries;
  for (v1::KeyValue& entry : *good.mutable_entries()) {
    entries.push_back(
        {std::move(*entry.mutable_key()), std::move(*entry.mutable_value()), entry.revision()});
  }
  return entries;
}

v1::Request PutRequest(std::vector<std::pair<std::string, std::string>> entries, bool overwrite) {
  v1::Request request;
  request.mutable_put()->set_overwrite(overwrite);
  for (auto& [key, value] : entries) {
    v1::KeyValue& entry = *request.mutable_put()->add_entries();
    entry.set_key(std::move(key));
    entry.set_value(std::move(value));
  }
  return request;
}

v1::Request IncrementRequest(absl::string_view key, int64_t increment) {
  v1::Request request;
  request.mutable_increment()->set_key(std::string(key));
  request.mutable_increment()->set_increment(increment);
  return request;
}

absl::StatusOr<int64_t> NumberOf(absl::StatusOr<v1::Reply> reply) {
  FERRY_ASSIGN_OR_RETURN(const v1::Reply good, Checked(std::move(reply)));
  int64_t number = 0;
  if (good.entries_size() != 1 || !absl::SimpleAtoi(good.entries(0).value(), &number)) {
    return absl::InternalError("the coordinator answered an increment without a number");
  }
  return number;
}

v1::Request CompareAndSetRequest(absl::string_view key, const std::optional<std::string>& expected,
                                 absl::string_view desired) {
  v1::Request request;
  v1::CompareAndSet& cas = *request.mutable_compare_and_set();
  cas.set_key(std::string(key));
  cas.set_expect_absent(!expected.has_value());
  if (expected.has_value()) cas.set_expected(*expected);
  cas.set_desired(std::string(desired));
  return request;
}

// ABORTED with the current entry is an answer here, not an error.
absl::StatusOr<CompareAndSetResult> CompareAndSetResultOf(const absl::StatusOr<v1::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  CompareAndSetResult result;
  result.was_set = reply->code() == 0;
  if (!result.was_set && reply->code() != static_cast<int>(absl::StatusCode::kAborted)) {
    return StatusOf(*reply);
  }
  if (reply->entries_size() > 0) result.value = reply->entries(0).value();
  return result;
}

constexpr char kASet[] = "a set to be confirmed";
constexpr char kAnIncrement[] = "an increment to be confirmed";
constexpr char kACompareAndSet[] = "a compare-and-set to be confirmed";

}  // namespace

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() = default;

absl::StatusOr<std::unique_ptr<Agent>> Agent::Connect(AgentOptions options) {
  const std::shared_ptr<CancellationToken> stop = options.connect_stop;
  const auto on_refused = options.recoverable ? nullptr : options.on_refused;
  auto agent = std::unique_ptr<Agent>(new Agent(std::make_unique<Impl>(std::move(options))));
  FERRY_RETURN_IF_ERROR(agent->impl_->Open());
  absl::Notification has_given_up;
  const CancellationToken::CallbackId callback =
      stop->Register([&has_given_up, &stop, impl = agent->impl_.get()] {
        impl->GiveUp(stop->status());
        has_given_up.Notify();
      });
  if (callback == CancellationToken::kNoCallback) return stop->status();
  const absl::Status status = agent->impl_->Join();
  if (!stop->Deregister(callback)) {
    // The agent stays until the coordinator has been notified, which takes seconds at most.
    has_given_up.WaitForNotification();
    return stop->status();
  }
  if (status.ok()) return agent;
  if (agent->impl_->is_refused() && on_refused) {
    // Destroyed now, so that it does not hold another process's node id meanwhile.
    agent = nullptr;
    on_refused(status);
  }
  return status;
}

int Agent::num_nodes() const { return impl_->welcome().num_nodes(); }
const std::string& Agent::observed_address() const { return impl_->welcome().observed_address(); }
uint64_t Agent::incarnation() const { return impl_->incarnation(); }

absl::Status Agent::Barrier(absl::string_view id, absl::Duration timeout, std::vector<int> nodes) {
  const std::string name(id);
  FERRY_ASSIGN_OR_RETURN(const int64_t counter, impl_->BeginBarrier(name));
  const auto answer = impl_->Begin(BarrierRequest(name, counter, timeout, nodes), timeout,
                                   absl::StrCat("barrier ", Quoted(name)));
  absl::StatusOr<v1::Reply> reply = answer->WaitForAny();
  impl_->EndBarrier(name, reply);
  return Checked(std::move(reply)).status();
}

void Agent::BarrierAsync(absl::string_view id, absl::Duration timeout, std::vector<int> nodes,
                         StatusCallback done) {
  const std::string name(id);
  const absl::StatusOr<int64_t> counter = impl_->BeginBarrier(name);
  if (!counter.ok())
    return impl_->link().Defer([done = std::move(done), why = counter.status()]() mutable {
      std::move(done)(std::move(why));
    });
  impl_->link().CallAsync(
      BarrierRequest(name, *counter, timeout, nodes), std::min(timeout, kLongestWait),
      absl::StrCat("barrier ", Quoted(name)),
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
  return impl_->AskQuickly(std::move(request), "a cancellation to be confirmed").status();
}

absl::StatusOr<std::vector<std::pair<int, uint64_t>>> Agent::AliveNodes(std::vector<int> nodes,
                                                                        absl::Duration timeout) {
  v1::Request request;
  for (const int node : nodes) request.mutable_get_alive()->add_nodes(node);
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->Ask(std::move(request), timeout, "the nodes that are alive to ask",
                                    /*keeps_time=*/true));
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
  if (impl_->topology() != nullptr) return *impl_->topology();
  v1::Request request;
  request.mutable_get_topology();
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->AskQuickly(std::move(request), "the topology"));
  return ParseGlobalTopology(reply.message());
}

absl::StatusOr<JobStatus> Agent::Status() {
  v1::Request request;
  request.mutable_get_job_status();
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->AskQuickly(std::move(request), "the job's status"));
  return ReadJobStatus(reply.job_status());
}

void Agent::WatchTasksAsync(int64_t version, Callback<NodeTable> done) {
  v1::Request request;
  request.mutable_watch_tasks()->set_version(version);
  request.mutable_watch_tasks()->set_only_changed(true);
  impl_->link().CallAsync(std::move(request), kLongestWait, "a change of the job's nodes",
                          [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                            reply = Checked(std::move(reply));
                            if (!reply.ok()) return std::move(done)(reply.status());
                            NodeTable table;
                            table.version = reply->version();
                            for (const v1::TaskInfo& task : reply->tasks()) {
                              table.tasks.push_back(ReadTaskStatus(task));
                            }
                            std::move(done)(std::move(table));
                          });
}

void Agent::WatchJoiningAsync(StatusCallback done) {
  v1::Request request;
  request.mutable_watch_joining();
  impl_->link().CallAsync(std::move(request), kLongestWait, "a node that cannot join",
                          [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                            std::move(done)(Checked(std::move(reply)).status());
                          });
}

void Agent::SetProgress(uint64_t progress) { impl_->link().SetProgress(progress); }

absl::Status Agent::ReportError(const absl::Status& error) { return impl_->Report(error); }

absl::Status Agent::Shutdown() {
  v1::Request request;
  request.mutable_shutdown();
  absl::Status status =
      impl_->Ask(std::move(request), kLongestWait, "all nodes to shut down").status();
  if (status.ok()) impl_->link().StopHeartbeats();
  return status;
}

absl::Status Agent::Leave() { return impl_->Detach(); }

absl::Status Agent::EndJob(absl::string_view why, bool force, absl::string_view auth_tag) {
  v1::Request request;
  request.mutable_end_job()->set_reason(std::string(why));
  request.mutable_end_job()->set_force(force);
  request.mutable_end_job()->set_proof(std::string(auth_tag));
  return impl_->AskQuickly(std::move(request), "the job to be ended").status();
}

absl::StatusOr<std::string> Agent::Get(absl::string_view key, absl::Duration timeout) {
  FERRY_ASSIGN_OR_RETURN(std::vector<std::string> values, GetAll({std::string(key)}, timeout));
  return std::move(values[0]);
}

absl::StatusOr<std::vector<std::string>> Agent::GetAll(std::vector<std::string> keys,
                                                       absl::Duration timeout) {
  std::string what = DescribeKeys(keys);
  return ValuesOf(impl_->Ask(GetRequest(std::move(keys), timeout), timeout, std::move(what)));
}

void Agent::GetAllAsync(std::vector<std::string> keys, absl::Duration timeout,
                        Callback<std::vector<std::string>> done) {
  std::string what = DescribeKeys(keys);
  impl_->link().CallAsync(GetRequest(std::move(keys), timeout), std::min(timeout, kLongestWait),
                          std::move(what),
                          [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                            std::move(done)(ValuesOf(std::move(reply)));
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
  return impl_->AskQuickly(PutRequest(std::move(entries), overwrite), kASet).status();
}

void Agent::SetAllAsync(std::vector<std::pair<std::string, std::string>> entries, bool overwrite,
                        StatusCallback done) {
  impl_->AskQuicklyAsync(PutRequest(std::move(entries), overwrite), kASet,
                         [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                           std::move(done)(Checked(std::move(reply)).status());
                         });
}

absl::Status Agent::Delete(absl::string_view key, bool subtree) {
  v1::Request request;
  request.mutable_delete_()->add_keys(std::string(key));
  request.mutable_delete_()->set_recursive(subtree);
  return impl_->AskQuickly(std::move(request), "a delete to be confirmed").status();
}

absl::StatusOr<int64_t> Agent::Increment(absl::string_view key, int64_t increment) {
  return NumberOf(impl_->AskQuickly(IncrementRequest(key, increment), kAnIncrement));
}

void Agent::IncrementAsync(absl::string_view key, int64_t increment, Callback<int64_t> done) {
  impl_->AskQuicklyAsync(IncrementRequest(key, increment), kAnIncrement,
                         [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                           std::move(done)(NumberOf(std::move(reply)));
                         });
}

absl::StatusOr<CompareAndSetResult> Agent::CompareAndSet(absl::string_view key,
                                                         const std::optional<std::string>& expected,
                                                         absl::string_view desired) {
  v1::Request request = CompareAndSetRequest(key, expected, desired);
  const absl::Duration timeout = impl_->AnswerTimeout(request.ByteSizeLong());
  return CompareAndSetResultOf(
      impl_->Begin(std::move(request), timeout, kACompareAndSet, /*keeps_time=*/true)
          ->WaitForAny());
}

void Agent::CompareAndSetAsync(absl::string_view key, const std::optional<std::string>& expected,
                               absl::string_view desired, Callback<CompareAndSetResult> done) {
  impl_->AskQuicklyAsync(CompareAndSetRequest(key, expected, desired), kACompareAndSet,
                         [done = std::move(done)](absl::StatusOr<v1::Reply> reply) mutable {
                           std::move(done)(CompareAndSetResultOf(reply));
                         });
}

absl::StatusOr<std::vector<KeyValue>> Agent::List(absl::string_view prefix, bool keys_only) {
  v1::Request request;
  request.mutable_list()->set_prefix(std::string(prefix));
  request.mutable_list()->set_keys_only(keys_only);
  return EntriesOf(impl_->AskQuickly(std::move(request), "a listing"));
}

absl::StatusOr<int> Agent::OpenStore(absl::string_view scope) {
  v1::Request request;
  request.mutable_open_store()->set_scope(std::string(scope));
  FERRY_ASSIGN_OR_RETURN(const v1::Reply reply,
                         impl_->AskQuickly(std::move(request), "a store to be opened"));
  return reply.port();
}

absl::Status Agent::CloseStore(absl::string_view scope, absl::Duration timeout) {
  v1::Request request;
  request.mutable_close_store()->set_scope(std::string(scope));
  return impl_->Ask(std::move(request), timeout, "a store to be closed", /*keeps_time=*/true)
      .status();
}

absl::StatusOr<std::vector<KeyValue>> Agent::ListStore(absl::string_view scope,
                                                       absl::string_view prefix, bool keys_only,
                                                       int64_t limit) {
  v1::Request request;
  v1::ListStore& list = *request.mutable_list_store();
  list.set_scope(std::string(scope));
  list.set_prefix(std::string(prefix));
  list.set_keys_only(keys_only);
  list.set_limit(limit);
  return EntriesOf(impl_->AskQuickly(std::move(request), "a listing of a store"));
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

}  // namespace ferry::coord
