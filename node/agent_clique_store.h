// SPDX-License-Identifier: Apache-2.0
// AgentCliqueStore: the coordinator's store as cliques of devices use it.
#ifndef FERRY_NODE_AGENT_CLIQUE_STORE_H_
#define FERRY_NODE_AGENT_CLIQUE_STORE_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/thread.h"
#include "coord/client/agent.h"
#include "gpu/clique/communicator.h"

namespace ferry {

// Changes are made one after the other on a thread of its own ("ferry-clique"); the first that
// fails is told, and nothing follows it.
class AgentCliqueStore final : public CliqueStore {
 public:
  static constexpr absl::Duration kGoodbye = absl::Seconds(2);

  // `agent` outlives it.
  AgentCliqueStore(coord::Agent& agent, std::shared_ptr<CliqueListener> listener);
  // Does what was asked for first, if the coordinator confirms it within kGoodbye: others give up
  // by themselves what they do not hear about.
  ~AgentCliqueStore() override;

  void Watch(absl::string_view prefix) override;
  void Set(absl::string_view key, std::string value) override;
  void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                     std::string desired) override;
  void DeletePrefix(absl::string_view prefix) override;

 private:
  using Work = absl::AnyInvocable<absl::Status() &&>;
  using Done = std::function<void(absl::Status)>;
  // Outlives the store with calls that it no longer waits for.
  struct Shared {
    absl::Mutex mu;
    std::deque<Work> work ABSL_GUARDED_BY(mu);
    bool is_stopping ABSL_GUARDED_BY(mu) = false;
    absl::Time stop_at ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();
  };

  void Post(Work work);
  void Run();
  // Waits for what `begin` begins: for as long as the agent does, when stopping until stop_at.
  absl::Status WaitFor(absl::FunctionRef<void(Done)> begin);

  coord::Agent& agent_;
  const std::shared_ptr<CliqueListener> listener_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  // Of the thread.
  std::unique_ptr<coord::AgentWatch> watch_;
  // Last: it uses the rest.
  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry

#endif  // FERRY_NODE_AGENT_CLIQUE_STORE_H_
