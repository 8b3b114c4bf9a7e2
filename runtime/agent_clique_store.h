// SPDX-License-Identifier: Apache-2.0
// AgentCliqueStore: the coordinator's store as cliques of devices use it.
#ifndef FERRY_RUNTIME_AGENT_CLIQUE_STORE_H_
#define FERRY_RUNTIME_AGENT_CLIQUE_STORE_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

#include "base/thread.h"
#include "coord/agent.h"
#include "gpu/clique/communicator.h"

namespace ferry {

// Changes are made one after the other on a thread of its own ("ferry-clique"); the first that
// fails is told, and nothing follows it.
class AgentCliqueStore final : public CliqueStore {
 public:
  // `agent` outlives it.
  AgentCliqueStore(coord::Agent& agent, std::shared_ptr<CliqueListener> listener);
  // Does what was asked for first.
  ~AgentCliqueStore() override;

  void Watch(absl::string_view prefix) override;
  void Set(absl::string_view key, std::string value) override;
  void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                     std::string desired) override;
  void DeletePrefix(absl::string_view prefix) override;

 private:
  using Work = absl::AnyInvocable<absl::Status() &&>;
  void Post(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  coord::Agent& agent_;
  const std::shared_ptr<CliqueListener> listener_;
  // Of the thread.
  std::unique_ptr<coord::AgentWatch> watch_;
  absl::Mutex mu_;
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Work> work_ ABSL_GUARDED_BY(mu_);
  // Last: it uses the rest.
  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry

#endif  // FERRY_RUNTIME_AGENT_CLIQUE_STORE_H_
