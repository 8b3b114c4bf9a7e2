// SPDX-License-Identifier: Apache-2.0
// ReconnectPolicy: when an agent connects again, and when its coordinator counts as lost.
#ifndef FERRY_COORD_CLIENT_RECONNECT_POLICY_H_
#define FERRY_COORD_CLIENT_RECONNECT_POLICY_H_

#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ferry::coord {

struct ReconnectOptions {
  // HOST:PORT, for messages.
  std::string coordinator;
  // How long the first connection may take, and joining with it.
  absl::Duration connect_timeout;
  // Zero: the heartbeat timeout that the coordinator reports.
  absl::Duration reconnect_timeout;
};

// Not thread-safe: part of an AgentLink. Pure: the time is passed to it. Attempts are repeated with
// exponential backoff and jitter, so that a thousand nodes do not reconnect at the same instant.
class ReconnectPolicy final {
 public:
  ReconnectPolicy(ReconnectOptions options, absl::Time now);

  // The end of the time for the first connection.
  absl::Time connect_deadline() const { return started_ + options_.connect_timeout; }
  absl::Time next_attempt() const { return next_attempt_; }

  // The coordinator has sent something, or its connection was there until `now`.
  void NoteContact(absl::Time now);
  // The coordinator has accepted the session.
  void NoteWelcome(absl::Duration heartbeat_timeout);
  // A connection or the attempt to make one has ended: the next attempt follows after a pause.
  void NoteEnd(const absl::Status& why, absl::Time now);
  // The job has failed. A coordinator that ends after that does not return: the process that hosted
  // it for this job has ended. Returns false if an earlier error is known.
  bool NoteJobError(const absl::Status& error);
  const absl::Status& job_error() const { return job_error_; }
  // While joining, a coordinator that is unreachable at the end of connect_timeout is lost.
  void SetJoining(bool is_joining) { is_joining_ = is_joining; }

  // When an unreachable coordinator counts as lost.
  absl::Time LostAt() const;
  // The error of an agent whose coordinator is lost.
  absl::Status LostError(absl::Time now) const;
  std::string OutOfReachText(absl::Time now) const;

 private:
  // Constant after construction.
  const ReconnectOptions options_;
  const absl::Time started_;

  // Set by the first Welcome.
  std::optional<absl::Duration> heartbeat_timeout_;
  bool is_joining_ = false;
  absl::Status job_error_;
  absl::Status last_failure_;
  absl::Time last_contact_;
  absl::Time next_attempt_;
  absl::Duration backoff_;
  std::minstd_rand random_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CLIENT_RECONNECT_POLICY_H_
