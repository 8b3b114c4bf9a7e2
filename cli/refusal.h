// SPDX-License-Identifier: Apache-2.0
// Telling the other processes of a job why this one cannot be part of it.
#ifndef FERRY_CLI_REFUSAL_H_
#define FERRY_CLI_REFUSAL_H_

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "node/node.h"

namespace ferry::cli {

// How long node 0, which runs the coordinator of a job that cannot begin, stays for those that come
// late, at most. They would otherwise look for the coordinator for all of their own timeout, which
// is taken to be the same.
inline absl::Duration LatecomersPatience(absl::Duration connect_timeout) {
  return std::min(connect_timeout, absl::Duration(absl::Seconds(60)));
}

// The others of the job of a process that cannot join it.
struct RefusedJob {
  // Of the coordinator's job.
  int nodes = 0;
  // Processes that look for the coordinator, beside this one; 0 if they are not known.
  int others = 0;
  // How long a process that runs the coordinator for them stays until they have come.
  absl::Duration timeout;
};

RefusedNode AsRefused(const NodeIdentity& place);

// Reports that this process, which was to be at `place`, fails with `why` before it joins: at once
// on stderr, and then to the others of its job, which would wait for it for minutes. Node 0, which
// was to run the coordinator, runs it until they have heard. So does a process that may be node 0,
// for seconds, if it is on the machine for that and nobody listens there. Returns `why`.
absl::Status ReportToOthers(const RefusedNode& place, const absl::Status& why,
                            const RefusedJob& job);

// For a process that was to run the coordinator and cannot listen, for the reason `why`: the error
// of the job if another process listens there to say it, else `why`.
absl::Status WhyNotListening(const std::string& coordinator, const absl::Status& why);

}  // namespace ferry::cli

#endif  // FERRY_CLI_REFUSAL_H_
