// SPDX-License-Identifier: Apache-2.0
// StatusWatch: polls a job's status, across restarts of its coordinator.
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

// Queries on a thread of its own ("ferry-ask"), one per query, so that an unresponsive coordinator
// is reported on stderr after a second. Used on one thread.
class StatusWatch final {
 public:
  //   coordinator: the address `agent` is connected to.
  //   max_asked: see AskTransferReports.
  StatusWatch(std::string coordinator, std::unique_ptr<coord::Agent> agent, BlockedSignals& signals,
              size_t max_asked)
      : coordinator_(std::move(coordinator)),
        max_asked_(max_asked),
        agent_(std::move(agent)),
        signals_(signals) {}

  StatusWatch(const StatusWatch&) = delete;
  StatusWatch& operator=(const StatusWatch&) = delete;

  // Returns the current status; reconnects if the coordinator has restarted. Exits the process with
  // 0 if one of the signals arrives meanwhile, because the query cannot be cancelled.
  //   Errors: as Agent::Status, once the coordinator was unreachable for kToolTimeout.
  absl::StatusOr<JobView> Next();

 private:
  absl::StatusOr<JobView> AskOnce();
  // Runs on the query thread.
  absl::StatusOr<JobView> Ask(absl::Duration timeout);
  void ReportUnresponsive();
  absl::Duration RemainingTimeout() const;

  // Constant after construction.
  const std::string coordinator_;
  const size_t max_asked_;

  std::unique_ptr<coord::Agent> agent_;  // owned by the query thread while there is one
  BlockedSignals& signals_;
  absl::Time answered_;  // last answer, by the steady clock
  bool has_reported_unresponsive_ = false;

  absl::Mutex mu_;
  std::optional<absl::StatusOr<JobView>> answer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_WATCH_H_
