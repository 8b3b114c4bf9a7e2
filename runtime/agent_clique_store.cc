// SPDX-License-Identifier: Apache-2.0
// One call after the other.
#include "runtime/agent_clique_store.h"

#include <utility>

#include "base/status_macros.h"

namespace ferry {

AgentCliqueStore::AgentCliqueStore(coord::Agent& agent, std::shared_ptr<CliqueListener> listener)
    : agent_(agent),
      listener_(std::move(listener)),
      thread_(std::make_unique<Thread>("ferry-clique", [this] { Run(); })) {}

AgentCliqueStore::~AgentCliqueStore() {
  {
    absl::MutexLock lock(&mu_);
    is_stopping_ = true;
  }
  thread_.reset();
}

void AgentCliqueStore::Post(Work work) {
  absl::MutexLock lock(&mu_);
  work_.push_back(std::move(work));
}

void AgentCliqueStore::Run() {
  absl::Status status;
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(
          +[](AgentCliqueStore* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
            return self->is_stopping_ || !self->work_.empty();
          },
          this));
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    if (!status.ok()) continue;
    status = std::move(work)();
    if (!status.ok()) listener_->StoreFailed(status);
  }
}

void AgentCliqueStore::Watch(absl::string_view prefix) {
  Post([this, prefix = std::string(prefix)]() -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(
        watch_, agent_.Watch(prefix, [listener = listener_](const coord::KeyChange& change) {
          if (!change.deleted) {
            listener->Entry(change.entry.key, change.entry.value);
          }
        }));
    // Answered on the same stream, behind what was there when the watch began.
    FERRY_RETURN_IF_ERROR(agent_.List(prefix, /*keys_only=*/true).status());
    listener_->Watching();
    return absl::OkStatus();
  });
}

void AgentCliqueStore::Set(absl::string_view key, std::string value) {
  Post([this, key = std::string(key), value = std::move(value)] {
    return agent_.Set(key, value, /*overwrite=*/true);
  });
}

void AgentCliqueStore::CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                                     std::string desired) {
  Post(
      [this, key = std::string(key), expected = std::move(expected), desired = std::move(desired)] {
        // Whoever was first, the watch tells.
        return agent_.CompareAndSet(key, expected, desired).status();
      });
}

void AgentCliqueStore::DeletePrefix(absl::string_view prefix) {
  Post([this, prefix = std::string(prefix)]() -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(const auto entries, agent_.List(prefix, /*keys_only=*/true));
    for (const coord::KeyValue& each : entries) {
      FERRY_RETURN_IF_ERROR(agent_.Delete(each.key));
    }
    return absl::OkStatus();
  });
}

}  // namespace ferry
