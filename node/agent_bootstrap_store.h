// SPDX-License-Identifier: Apache-2.0
// AgentBootstrapStore: BootstrapStore on top of the coordinator's store.
#ifndef FERRY_NODE_AGENT_BOOTSTRAP_STORE_H_
#define FERRY_NODE_AGENT_BOOTSTRAP_STORE_H_

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
#include "gpu/communicator/communicator.h"

namespace ferry {

// Writes are made in order on a dedicated thread ("ferry-bootstrap"); the first failure is reported
// to the listener, and ends it.
class AgentBootstrapStore final : public BootstrapStore {
 public:
  static constexpr absl::Duration kFlushTimeout = absl::Seconds(2);

  // `agent` outlives it.
  AgentBootstrapStore(coord::Agent& agent, std::shared_ptr<BootstrapStoreListener> listener);
  // Performs the queued writes first, if the coordinator confirms them within kFlushTimeout; other
  // ranks time out by themselves without them.
  ~AgentBootstrapStore() override;

  void Watch(absl::string_view prefix) override;
  void Set(absl::string_view key, std::string value) override;
  void CompareAndSet(absl::string_view key, std::optional<std::string> expected,
                     std::string desired) override;
  //   prefix: ends with "/". A failure is logged, and ends nothing.
  void DeletePrefix(absl::string_view prefix) override;

 private:
  using Work = absl::AnyInvocable<absl::Status() &&>;
  using Done = std::function<void(absl::Status)>;
  // Calls that are no longer waited for keep it alive after the store is destroyed.
  struct Shared {
    absl::Mutex mu;
    std::deque<Work> work ABSL_GUARDED_BY(mu);
    bool is_stopping ABSL_GUARDED_BY(mu) = false;
    absl::Time stop_at ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();
  };

  void Post(Work work);
  void Run();
  // Blocks until the call that `begin` starts has completed: for the agent's own timeout, or until
  // stop_at when stopping.
  absl::Status WaitFor(absl::FunctionRef<void(Done)> begin);

  coord::Agent& agent_;
  const std::shared_ptr<BootstrapStoreListener> listener_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  // Used by the thread only.
  std::unique_ptr<coord::AgentWatch> watch_;
  // Declared last: it uses the other members.
  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry

#endif  // FERRY_NODE_AGENT_BOOTSTRAP_STORE_H_
