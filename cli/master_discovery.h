// SPDX-License-Identifier: Apache-2.0
// Distributes MASTER_ADDR and MASTER_PORT from rank 0's machine to the others of a `ferry run`.
#ifndef FERRY_CLI_MASTER_DISCOVERY_H_
#define FERRY_CLI_MASTER_DISCOVERY_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "cli/run_store.h"
#include "coord/client/agent.h"
#include "node/identity.h"

namespace ferry::cli {

// Where ranks of the PyTorch convention meet.
struct MasterPlace {
  // HOST:PORT
  std::string address;
  // Not empty: the coordinator serves the store there, for the run with this id; otherwise rank 0
  // does.
  std::string store_run_id;
};

// The first machine chooses the address and responds to requests for it:
//   1. Another machine draws a number and sets "ferry/run/asks/NUMBER" to its machine index.
//   2. The first machine, which watches that prefix, sets "ferry/run/master/NUMBER" to HOST:PORT
//      and, if the coordinator serves the store there, "ferry/run/store/NUMBER" to the run's id.
//   3. The other machine reads and removes them.
// A response therefore never comes from an earlier job on the same coordinator. If the store is
// cleared in between because a new job begins, a request or response is lost, and the request is
// repeated. Both sides watch for a process that cannot join the job, so as not to wait for machines
// that will not come.
class MasterDiscovery final {
 public:
  //   coordinator: HOST:PORT, as this machine reaches it.
  //   Errors: as coord::Agent::Connect, after `timeout`.
  static absl::StatusOr<std::unique_ptr<MasterDiscovery>> Join(const std::string& coordinator,
                                                               absl::Duration timeout);

  // Number of nodes of the coordinator's job.
  int num_nodes() const { return agent_->num_nodes(); }
  // Returns the error of another process that cannot join the job; OK if none is reported within
  // `timeout`.
  absl::Status Refusal(absl::Duration timeout = absl::ZeroDuration()) const;

  // On the first machine, before Answer: has the coordinator serve the store, until destroyed.
  //   Errors: as RunStore::Open.
  absl::Status OpenStore();
  // On the first machine: chooses the address, that of OpenStore if it was opened, and responds to
  // requests until destroyed. Prints on stderr which values of the environment are ignored.
  //   Errors: as ChooseMaster.
  absl::StatusOr<MasterPlace> Answer(GetEnv get_env, int machine_count);
  // Blocks until all other machines have been answered, and prints on stderr which are missing.
  // Needed because the first machine may finish before another one has started.
  //   Errors: DEADLINE_EXCEEDED naming those that did not ask within `timeout`; or, sooner,
  //   Refusal, unless they ask within seconds.
  absl::Status WaitUntilAllAnswered(absl::Duration timeout);
  // On another machine: requests the address.
  //   Errors: DEADLINE_EXCEEDED if the first machine does not answer within `timeout`; Refusal.
  absl::StatusOr<MasterPlace> Ask(GetEnv get_env, int machine_index, absl::Duration timeout);

 private:
  // Shared with the agent's callbacks.
  struct Answered {
    absl::Mutex mu;
    // See Refusal.
    absl::Status refusal ABSL_GUARDED_BY(mu);
    // Why a request could not be set.
    absl::Status ask_error ABSL_GUARDED_BY(mu);
    // Per machine; the first one needs no answer.
    std::vector<bool> is_done ABSL_GUARDED_BY(mu);

    bool all() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      return std::find(is_done.begin(), is_done.end(), false) == is_done.end();
    }
    bool is_refused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return !refusal.ok(); }
    bool is_over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return all() || is_refused(); }
  };

  explicit MasterDiscovery(std::string coordinator)
      : coordinator_(std::move(coordinator)), answered_(std::make_shared<Answered>()) {}

  // Chooses the address of Answer.
  absl::StatusOr<MasterPlace> Choose(GetEnv get_env, int machine_count) const;
  std::string Unanswered() const;
  absl::Status AskError() const;

  const std::string coordinator_;
  const std::shared_ptr<Answered> answered_;
  std::unique_ptr<coord::Agent> agent_;
  // Declared after the agent, to be destroyed before it.
  std::unique_ptr<RunStore> store_;
  std::unique_ptr<coord::AgentWatch> watch_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_MASTER_DISCOVERY_H_
