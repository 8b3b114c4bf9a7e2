// SPDX-License-Identifier: Apache-2.0
// A thread per query, and a timeout for its answer.
#include "cli/status_watch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/thread.h"
#include "cli/tool_agent.h"
#include "cli/verb.h"

namespace ferry::cli {
namespace {

// A live coordinator answers within a small fraction of this.
constexpr absl::Duration kSilence = absl::Seconds(1);
// Timeout for nodes that hang; below kSilence, so that they do not make the coordinator look
// silent.
constexpr absl::Duration kNodesTimeout = absl::Milliseconds(400);
// Delay between attempts to connect to a coordinator that refuses connections.
constexpr absl::Duration kRetryPause = absl::Milliseconds(200);

bool MayComeBack(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

[[noreturn]] void EndInterrupted() {
  std::fflush(nullptr);
  _exit(kDone);
}

}  // namespace

absl::Duration StatusWatch::RemainingTimeout() const {
  return kToolTimeout - (SteadyClock().Now() - answered_);
}

absl::StatusOr<JobView> StatusWatch::Ask(absl::Duration timeout) {
  if (agent_ == nullptr) {
    coord::AgentOptions options;
    options.coordinator = coordinator_;
    options.connect_timeout = std::max(timeout, kRetryPause);
    options.reconnect_timeout = kToolTimeout;
    FERRY_ASSIGN_OR_RETURN(agent_, coord::Agent::Connect(std::move(options)));
  }
  absl::StatusOr<coord::JobStatus> status = agent_->Status();
  // An agent that has lost its coordinator does not recover: replace it.
  if (!status.ok()) {
    agent_ = nullptr;
    return status.status();
  }
  JobView view = {*std::move(status), AskTransferReports(*agent_, kNodesTimeout, max_asked_)};
  return view;
}

void StatusWatch::ReportUnresponsive() {
  if (std::exchange(has_reported_unresponsive_, true)) return;
  const absl::Time since = absl::Now() - (SteadyClock().Now() - answered_);
  std::fflush(stdout);
  std::fprintf(stderr, "ferry: the coordinator at %s is out of reach since %s; trying for %s\n",
               coordinator_.c_str(),
               absl::FormatTime("%H:%M:%S", since, absl::LocalTimeZone()).c_str(),
               ShortDuration(kToolTimeout).c_str());
}

absl::StatusOr<JobView> StatusWatch::AskOnce() {
  Thread asker("ferry-ask", [this, timeout = RemainingTimeout()] {
    absl::StatusOr<JobView> status = Ask(timeout);
    {
      absl::MutexLock lock(&mu_);
      answer_ = std::move(status);
    }
    signals_.Wake();
  });
  while (true) {
    if (signals_.WaitFor(kSilence)) EndInterrupted();
    {
      absl::MutexLock lock(&mu_);
      if (answer_) return *std::exchange(answer_, std::nullopt);
    }
    ReportUnresponsive();
  }
}

absl::StatusOr<JobView> StatusWatch::Next() {
  answered_ = SteadyClock().Now();
  while (true) {
    absl::StatusOr<JobView> status = AskOnce();
    if (status.ok()) {
      if (std::exchange(has_reported_unresponsive_, false)) {
        std::fprintf(stderr, "ferry: the coordinator at %s is there again\n", coordinator_.c_str());
      }
      return status;
    }
    if (!MayComeBack(status.status()) || RemainingTimeout() <= absl::ZeroDuration()) return status;
    // A restarted coordinator is reachable at once; it is silent only if this attempt fails too.
    if (SteadyClock().Now() - answered_ >= kSilence) ReportUnresponsive();
    if (signals_.WaitFor(kRetryPause)) EndInterrupted();
  }
}

}  // namespace ferry::cli
