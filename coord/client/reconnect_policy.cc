// SPDX-License-Identifier: Apache-2.0
// Backoff, and the limits of an absence.
#include "coord/client/reconnect_policy.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry::coord {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(20);
constexpr absl::Duration kLongestBackoff = absl::Seconds(2);
// How long a coordinator may be unreachable when the job has failed. All that is left is to leave.
constexpr absl::Duration kTimeoutAfterError = absl::Seconds(3);

}  // namespace

ReconnectPolicy::ReconnectPolicy(ReconnectOptions options, absl::Time now)
    : options_(std::move(options)),
      started_(now),
      last_contact_(now),
      next_attempt_(now),
      backoff_(kFirstBackoff),
      random_(static_cast<uint32_t>(absl::ToUnixNanos(now))) {}

void ReconnectPolicy::NoteContact(absl::Time now) { last_contact_ = std::max(last_contact_, now); }

void ReconnectPolicy::NoteWelcome(absl::Duration heartbeat_timeout) {
  heartbeat_timeout_ = heartbeat_timeout;
  backoff_ = kFirstBackoff;
}

void ReconnectPolicy::NoteEnd(const absl::Status& why, absl::Time now) {
  last_failure_ = why;
  next_attempt_ = now + backoff_ * (0.5 + 0.5 * (random_() % 1024) / 1024.0);
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
}

bool ReconnectPolicy::NoteJobError(const absl::Status& error) {
  if (!job_error_.ok()) return false;
  job_error_ = error;
  return true;
}

absl::Time ReconnectPolicy::LostAt() const {
  absl::Duration timeout = options_.reconnect_timeout > absl::ZeroDuration()
                               ? options_.reconnect_timeout
                               : heartbeat_timeout_.value_or(options_.connect_timeout);
  if (!job_error_.ok()) timeout = std::min(timeout, kTimeoutAfterError);
  const absl::Time lost_at = last_contact_ + timeout;
  return is_joining_ ? std::min(lost_at, connect_deadline()) : lost_at;
}

absl::Status ReconnectPolicy::LostError(absl::Time now) const {
  if (!job_error_.ok()) return job_error_;
  if (is_joining_ && now >= connect_deadline()) {
    return absl::DeadlineExceededError(absl::StrCat("waited ", ShortDuration(now - started_),
                                                    " for the other nodes to join; ",
                                                    OutOfReachText(now)));
  }
  // Never reached: the caller's timeout has passed.
  return heartbeat_timeout_.has_value() ? absl::UnavailableError(OutOfReachText(now))
                                        : absl::DeadlineExceededError(OutOfReachText(now));
}

std::string ReconnectPolicy::OutOfReachText(absl::Time now) const {
  return absl::StrCat("the coordinator at ", options_.coordinator, " has been out of reach for ",
                      ShortDuration(now - last_contact_), " (",
                      last_failure_.ok() ? "no answer from there yet" : last_failure_.message(),
                      "); is it running, and is the address right?");
}

}  // namespace ferry::coord
