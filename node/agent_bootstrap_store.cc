// SPDX-License-Identifier: Apache-2.0
// AgentBootstrapStore: a queue of writes, made one after the other.
#include "node/agent_bootstrap_store.h"

#include <utility>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"

#include "base/logging.h"
#include "base/status_macros.h"

namespace ferry {

AgentBootstrapStore::AgentBootstrapStore(coord::Agent& agent,
                                         std::shared_ptr<BootstrapStoreListener> listener)
    : agent_(agent),
      listener_(std::move(listener)),
      thread_(std::make_unique<Thread>("ferry-bootstrap", [this] { Run(); })) {}

AgentBootstrapStore::~AgentBootstrapStore() {
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->is_stopping = true;
    shared_->stop_at = absl::Now() + kFlushTimeout;
  }
  thread_.reset();
}

void AgentBootstrapStore::Post(Work work) {
  absl::MutexLock lock(&shared_->mu);
  shared_->work.push_back(std::move(work));
}

void AgentBootstrapStore::Run() {
  absl::Status status;
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&shared_->mu);
      shared_->mu.Await(absl::Condition(
          +[](Shared* shared) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared->mu) {
            return shared->is_stopping || !shared->work.empty();
          },
          shared_.get()));
      if (shared_->work.empty()) return;
      work = std::move(shared_->work.front());
      shared_->work.pop_front();
    }
    if (!status.ok()) continue;
    status = std::move(work)();
    if (!status.ok()) listener_->StoreFailed(status);
  }
}

absl::Status AgentBootstrapStore::WaitFor(absl::FunctionRef<void(Done)> begin) {
  auto answer = std::make_shared<std::optional<absl::Status>>();
  begin([shared = shared_, answer](absl::Status status) {
    absl::MutexLock lock(&shared->mu);
    *answer = std::move(status);
  });
  absl::MutexLock lock(&shared_->mu);
  const auto has_ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mu) {
    return answer->has_value() || shared_->is_stopping;
  };
  shared_->mu.Await(absl::Condition(&has_ended));
  const auto is_answered = [&] { return answer->has_value(); };
  // Unless stopping, the agent's own deadline ends this wait.
  if (shared_->mu.AwaitWithDeadline(absl::Condition(&is_answered), shared_->stop_at)) {
    return **answer;
  }
  return absl::CancelledError("the coordinator has not confirmed it before the store was left");
}

void AgentBootstrapStore::Watch(absl::string_view prefix) {
  Post([this, prefix = std::string(prefix)]() -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(
        watch_, agent_.Watch(prefix, [listener = listener_](const coord::KeyChange& change) {
          if (!change.deleted) {
            listener->Entry(change.entry.key, change.entry.value);
          }
        }));
    // Answered on the same stream, after the entries that existed when the watch began.
    FERRY_RETURN_IF_ERROR(agent_.List(prefix, /*keys_only=*/true).status());
    listener_->Watching();
    return absl::OkStatus();
  });
}

void AgentBootstrapStore::Set(absl::string_view key, std::string value) {
  Post([this, key = std::string(key), value = std::move(value)] {
    return WaitFor([&](Done done) {
      agent_.SetAllAsync({{key, value}}, /*overwrite=*/true, std::move(done));
    });
  });
}

void AgentBootstrapStore::CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                                        std::string desired) {
  Post(
      [this, key = std::string(key), expected = std::move(expected), desired = std::move(desired)] {
        // The watch reports which rank won.
        return WaitFor([&](Done done) {
          agent_.CompareAndSetAsync(
              key, expected, desired,
              [done = std::move(done)](const auto& result) { done(result.status()); });
        });
      });
}

void AgentBootstrapStore::DeletePrefix(absl::string_view prefix) {
  Post([this, prefix = std::string(prefix)]() -> absl::Status {
    // One request, however many keys. Nothing depends on it, so that its failure ends nothing: the
    // keys stay until those of the next generation are deleted.
    const absl::Status deleted = agent_.Delete(absl::StripSuffix(prefix, "/"), /*subtree=*/true);
    if (!deleted.ok()) {
      FERRY_LOG_INFO(kNode, "keys of a communicator stay in the store: {}", deleted);
    }
    return absl::OkStatus();
  });
}

}  // namespace ferry
