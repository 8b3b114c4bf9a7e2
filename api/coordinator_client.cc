// SPDX-License-Identifier: Apache-2.0
// The public CoordinatorClient calls an agent: that of a node, or its own.
#include <ferry/coordinator_client.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/api_access.h"
#include "api/callback_gate.h"
#include "api/public_terms.h"
#include "base/cancellation_token.h"
#include "base/status_macros.h"
#include "coord/client/agent.h"

namespace ferry::v0 {
namespace {

NodeState StateOf(const coord::TaskStatus& task) {
  if (task.is_joining) return NodeState::kNotJoined;
  switch (task.state) {
    case coord::TaskState::kConnected:
      return NodeState::kJoined;
    case coord::TaskState::kError:
      return NodeState::kFailed;
    case coord::TaskState::kDisconnected:
      break;
  }
  return task.incarnation != 0 ? NodeState::kLeft : NodeState::kNotJoined;
}

// A Get whose timeout has passed before it was sent does not wait in the coordinator, which then
// answers as to TryGet.
absl::Status InTime(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::DeadlineExceededError(status.message()) : status;
}

// The agent's call goes on after a cancellation, and nothing waits for it.
absl::StatusOr<std::vector<std::string>> GetAllUnlessCancelled(
    coord::Agent& agent, std::vector<std::string> keys, absl::Duration timeout,
    ferry::CancellationToken& cancellation) {
  using Values = absl::StatusOr<std::vector<std::string>>;
  const auto result = std::make_shared<std::promise<Values>>();
  const auto is_set = std::make_shared<std::atomic<bool>>(false);
  const auto set = [result, is_set](Values values) {
    if (!is_set->exchange(true)) result->set_value(std::move(values));
  };
  std::future<Values> values = result->get_future();
  // It may be cancelled by now.
  const auto id = cancellation.Register([set, &cancellation] { set(cancellation.status()); });
  if (id == ferry::CancellationToken::kNoCallback) return cancellation.status();
  agent.GetAllAsync(std::move(keys), timeout, set);
  Values got = values.get();
  cancellation.Deregister(id);
  return got;
}

KeyValue Convert(const coord::KeyValue& entry) {
  return {.key = entry.key, .value = entry.value, .revision = entry.revision};
}

}  // namespace

std::string ToString(NodeState state) {
  switch (state) {
    case NodeState::kNotJoined:
      return "not joined";
    case NodeState::kJoined:
      return "joined";
    case NodeState::kLeft:
      return "left";
    case NodeState::kFailed:
      return "failed";
  }
  return "unknown";
}

class CoordinatorClient::Impl final {
 public:
  coord::Agent& agent() { return own != nullptr ? *own : *borrowed; }

  std::unique_ptr<coord::Agent> own;
  coord::Agent* borrowed = nullptr;
};

CoordinatorClient::CoordinatorClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorClient::~CoordinatorClient() = default;

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Connect(
    CoordinatorClientOptions options) {
  coord::AgentOptions agent;
  agent.coordinator = std::move(options.address);
  agent.connect_timeout = options.connect_timeout;
  agent.answer_timeout = options.rpc_timeout;
  if (options.cancellation.has_value()) {
    agent.connect_stop = ApiAccess::Unwrap(*options.cancellation);
  }
  auto impl = std::make_unique<Impl>();
  FERRY_ASSIGN_OR_RETURN(impl->own, coord::Agent::Connect(std::move(agent)));
  return std::unique_ptr<CoordinatorClient>(new CoordinatorClient(std::move(impl)));
}

int CoordinatorClient::num_nodes() const { return impl_->agent().num_nodes(); }

absl::StatusOr<std::string> CoordinatorClient::Get(absl::string_view key, absl::Duration timeout,
                                                   std::optional<CancellationToken> cancellation) {
  if (cancellation.has_value()) {
    FERRY_ASSIGN_OR_RETURN(std::vector<std::string> values,
                           GetAll({std::string(key)}, timeout, std::move(cancellation)));
    return std::move(values.front());
  }
  absl::StatusOr<std::string> value = impl_->agent().Get(key, timeout);
  if (!value.ok()) return InTime(value.status());
  return value;
}

absl::StatusOr<std::vector<std::string>> CoordinatorClient::GetAll(
    std::vector<std::string> keys, absl::Duration timeout,
    std::optional<CancellationToken> cancellation) {
  absl::StatusOr<std::vector<std::string>> values;
  if (cancellation.has_value()) {
    values = GetAllUnlessCancelled(impl_->agent(), std::move(keys), timeout,
                                   *ApiAccess::Unwrap(*cancellation));
  } else {
    values = impl_->agent().GetAll(std::move(keys), timeout);
  }
  if (!values.ok()) return InTime(values.status());
  return values;
}

absl::StatusOr<std::string> CoordinatorClient::TryGet(absl::string_view key) {
  return impl_->agent().TryGet(key);
}

absl::StatusOr<std::vector<KeyValue>> CoordinatorClient::List(absl::string_view prefix) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> entries, impl_->agent().List(prefix));
  std::vector<KeyValue> result;
  for (const coord::KeyValue& entry : entries) result.push_back(Convert(entry));
  return result;
}

absl::Status CoordinatorClient::Set(absl::string_view key, absl::string_view value,
                                    bool overwrite) {
  return impl_->agent().Set(key, value, overwrite);
}

absl::Status CoordinatorClient::SetAll(std::vector<std::pair<std::string, std::string>> entries,
                                       bool overwrite) {
  return impl_->agent().SetAll(std::move(entries), overwrite);
}

absl::StatusOr<int64_t> CoordinatorClient::Add(absl::string_view key, int64_t delta) {
  return impl_->agent().Increment(key, delta);
}

absl::StatusOr<bool> CoordinatorClient::CompareAndSet(absl::string_view key,
                                                      const std::optional<std::string>& expected,
                                                      absl::string_view desired) {
  FERRY_ASSIGN_OR_RETURN(const coord::CompareAndSetResult result,
                         impl_->agent().CompareAndSet(key, expected, desired));
  return result.was_set;
}

absl::Status CoordinatorClient::Delete(absl::string_view key, bool is_prefix) {
  return impl_->agent().Delete(key, is_prefix);
}

absl::StatusOr<KeyWatch> CoordinatorClient::Watch(absl::string_view prefix,
                                                  std::function<void(const KeyChange&)> on_change) {
  if (on_change == nullptr) return absl::InvalidArgumentError("a watch needs a callback");
  auto gate = std::make_shared<CallbackGate>();
  FERRY_ASSIGN_OR_RETURN(
      std::unique_ptr<coord::AgentWatch> watch,
      impl_->agent().Watch(
          prefix, [gate, on_change = std::move(on_change)](const coord::KeyChange& change) {
            gate->Run(
                [&] { on_change({.is_deleted = change.deleted, .entry = Convert(change.entry)}); });
          }));
  return ApiAccess::Wrap(std::move(watch), std::move(gate));
}

absl::Status CoordinatorClient::Barrier(absl::string_view id, absl::Duration timeout,
                                        std::vector<int> ranks) {
  return InPublicTerms(impl_->agent().Barrier(id, timeout, std::move(ranks)));
}

absl::Status CoordinatorClient::CancelBarrier(absl::string_view id) {
  return impl_->agent().CancelBarrier(id);
}

absl::StatusOr<std::vector<int>> CoordinatorClient::LiveNodes(std::vector<int> ranks,
                                                              absl::Duration timeout) {
  const auto alive = impl_->agent().AliveNodes(std::move(ranks), timeout);
  if (!alive.ok()) return InPublicTerms(alive.status());
  std::vector<int> result;
  for (const auto& [rank, incarnation] : *alive) result.push_back(rank);
  return result;
}

absl::StatusOr<std::vector<NodeStatus>> CoordinatorClient::Nodes() {
  FERRY_ASSIGN_OR_RETURN(const coord::JobStatus job, impl_->agent().Status());
  std::vector<NodeStatus> nodes;
  for (const coord::TaskStatus& task : job.tasks) {
    NodeStatus node;
    node.rank = task.node_id;
    node.state = StateOf(task);
    node.host_name = task.facts.host_name;
    node.error = InPublicTerms(task.error);
    node.heartbeat_age = task.heartbeat_age;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

absl::Status CoordinatorClient::JobStatus() {
  FERRY_ASSIGN_OR_RETURN(const coord::JobStatus job, impl_->agent().Status());
  return InPublicTerms(job.error);
}

std::unique_ptr<CoordinatorClient> ApiAccess::Wrap(coord::Agent& agent) {
  auto impl = std::make_unique<CoordinatorClient::Impl>();
  impl->borrowed = &agent;
  return std::unique_ptr<CoordinatorClient>(new CoordinatorClient(std::move(impl)));
}

}  // namespace ferry::v0
