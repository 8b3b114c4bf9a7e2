// SPDX-License-Identifier: Apache-2.0
// StatusWatch: the status of a job again and again, through restarts of its coordinator.
#ifndef FERRY_CLI_STATUS_WATCH_H_
#define FERRY_CLI_STATUS_WATCH_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "cli/signals.h"
#include "cli/status_text.h"
#include "coord/client/agent.h"

namespace ferry::cli {

// Asks on a thread of its own ("ferry-ask"), one per question, so that a coordinator that does not
// answer is told of on stderr after a second. Used on one thread.
class StatusWatch final {
 public:
  //   coordinator: where `agent` is connected.
  //   max_asked: see AskExchange.
  StatusWatch(std::string coordinator, std::unique_ptr<coord::Agent> agent, BlockedSignals& signals,
              size_t max_asked)
      : coordinator_(std::move(coordinator)),
        max_asked_(max_asked),
        agent_(std::move(agent)),
        signals_(signals) {}

  StatusWatch(const StatusWatch&) = delete;
  StatusWatch& operator=(const StatusWatch&) = delete;

  // The status as it is now; connects anew where the coordinator has restarted. Ends the process,
  // with 0, when one of the signals arrives meanwhile: nothing calls the asking thread back.
  //   Errors: as Agent::Status, once the coordinator was out of reach for kToolTimeout.
  absl::StatusOr<JobView> Next();

 private:
  absl::StatusOr<JobView> AskOnce();
  // On the asking thread.
  absl::StatusOr<JobView> Ask(absl::Duration timeout);
  void SaySilent();
  absl::Duration PatienceLeft() const;

  // Constant after construction.
  const std::string coordinator_;
  const size_t max_asked_;

  std::unique_ptr<coord::Agent> agent_;  // the asking thread's while there is one
  BlockedSignals& signals_;
  absl::Time answered_;  // the last time, on the steady clock
  bool has_said_silent_ = false;

  absl::Mutex mu_;
  std::optional<absl::StatusOr<JobView>> answer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_WATCH_H_
