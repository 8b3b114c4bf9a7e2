// SPDX-License-Identifier: Apache-2.0
// Reports to the other processes of a job why this one cannot join.
#ifndef FERRY_CLI_REFUSAL_H_
#define FERRY_CLI_REFUSAL_H_

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "node/node.h"

namespace ferry::cli {

// Returns how long node 0, running the coordinator of a job that cannot begin, waits for late
// nodes. They would otherwise search for the coordinator for their own timeout, which is assumed to
// be the same.
inline absl::Duration LateNodeTimeout(absl::Duration connect_timeout) {
  return std::min(connect_timeout, absl::Duration(absl::Seconds(60)));
}

// The job of a process that cannot join it.
struct RefusedJob {
  // Number of nodes of the coordinator's job.
  int nodes = 0;
  // Other processes that search for the coordinator; 0 if unknown.
  int others = 0;
  // How long a process that hosts the coordinator waits for them.
  absl::Duration timeout;
};

RefusedNode AsRefused(const NodeIdentity& node_identity);

// Reports that this process, meant to be at `node_identity`, fails with `why` before it joins: at
// once on stderr, and then to the others of its job, which would otherwise wait for minutes. If
// this is node 0 and was to run the coordinator, it does so until they have been notified. A
// process that might be node 0 does the same for a few seconds, if it is on the right machine and
// nothing listens there. Returns `why`.
absl::Status ReportToOthers(const RefusedNode& node_identity, const absl::Status& why,
                            const RefusedJob& job);

// For a process that was to run the coordinator and cannot listen, for the reason `why`: returns
// the job's error if another process listens there to report it, else `why`.
absl::Status WhyNotListening(const std::string& coordinator, const absl::Status& why);

}  // namespace ferry::cli

#endif  // FERRY_CLI_REFUSAL_H_
