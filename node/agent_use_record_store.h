// SPDX-License-Identifier: Apache-2.0
// AgentUseRecordStore: UseRecordStore on top of the coordinator's store.
#ifndef FERRY_NODE_AGENT_USE_RECORD_STORE_H_
#define FERRY_NODE_AGENT_USE_RECORD_STORE_H_

#include <optional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "coord/client/agent.h"
#include "gpu/communicator/communicator_use_record.h"

namespace ferry {

// Thread-safe; blocks for the agent's timeout at most. `agent` outlives it.
class AgentUseRecordStore final : public UseRecordStore {
 public:
  explicit AgentUseRecordStore(coord::Agent& agent) : agent_(agent) {}

  absl::Status Put(const std::string& key, absl::string_view value) override {
    return agent_.Set(key, value, /*overwrite=*/true);
  }
  absl::Status Erase(const std::string& key) override {
    const absl::Status status = agent_.Delete(key);
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override {
    absl::StatusOr<std::string> value = agent_.TryGet(key);
    if (absl::IsNotFound(value.status())) return std::nullopt;
    FERRY_RETURN_IF_ERROR(value.status());
    return *std::move(value);
  }
  absl::StatusOr<std::vector<std::string>> KeysUnder(const std::string& prefix) override {
    FERRY_ASSIGN_OR_RETURN(const auto entries, agent_.List(prefix, /*keys_only=*/true));
    std::vector<std::string> keys;
    for (const coord::KeyValue& each : entries) keys.push_back(each.key);
    return keys;
  }
  absl::StatusOr<bool> CompareAndSet(const std::string& key,
                                     const std::optional<std::string>& expected,
                                     absl::string_view desired) override {
    FERRY_ASSIGN_OR_RETURN(const auto result, agent_.CompareAndSet(key, expected, desired));
    return result.was_set;
  }

 private:
  coord::Agent& agent_;
};

}  // namespace ferry

#endif  // FERRY_NODE_AGENT_USE_RECORD_STORE_H_
