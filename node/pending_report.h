// SPDX-License-Identifier: Apache-2.0
// Report of the pending operations of a job: requested and answered through the store.
#ifndef FERRY_NODE_PENDING_REPORT_H_
#define FERRY_NODE_PENDING_REPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coord/client/agent.h"
#include "rendezvous/remote_rendezvous.h"

namespace ferry {

// 1. The requester sets kPendingRequestKey to a value that it did not have before.
// 2. Every node of the job that transfers tensors watches that key, and sets PendingKey(node) to
//    its operations that are pending then.
// 3. An answer is newer than the request if its revision is.
// Concurrent requesters do not disturb each other: an answer to the later request also answers the
// earlier one.
inline constexpr char kPendingRequestKey[] = "ferry/pending-request";
inline constexpr char kPendingPrefix[] = "ferry/pending/";
std::string PendingKey(int node_id);

// Maximum number of rows in an answer, the oldest first; it also gives the total.
inline constexpr size_t kMaxPendingRows = 64;
// Younger operations are in flight rather than stuck.
inline constexpr absl::Duration kPendingAge = absl::Seconds(1);

struct PendingRow {
  int64_t step_id = 0;
  // "send": waits for a receiver, or is in flight to one; "recv": waits for a sender. A request of
  // a peer is pending on both sides, and reported by both.
  std::string side;
  // The node on the other side.
  int64_t peer = 0;
  absl::Duration age;
  size_t bytes = 0;
  std::string key;
  // Its progress, human-readable.
  std::string phase;

  friend bool operator==(const PendingRow&, const PendingRow&) = default;
};

struct PendingReport {
  int64_t total = 0;
  // The oldest first.
  std::vector<PendingRow> rows;

  friend bool operator==(const PendingReport&, const PendingReport&) = default;
};

// As TransferEngine::ForEachPending.
using PendingSource = std::function<void(absl::Duration min_age, PendingVisitor visit)>;

PendingReport MakePendingReport(const PendingSource& source, absl::Duration min_age);

// A ferry.peer.v1.PendingReport. REQUIRES: every side is "send" or "recv".
std::string EncodePending(const PendingReport& report);
//   node: the node that published it at PendingKey(node), for errors.
//   Errors: INVALID_ARGUMENT naming both; FAILED_PRECONDITION it is of another major version.
absl::StatusOr<PendingReport> DecodePending(absl::string_view bytes, int node);

// Answers requests while the returned watch exists. `agent` and whatever `source` uses must outlive
// it.
//   Errors: as Agent::Watch.
absl::StatusOr<std::unique_ptr<coord::AgentWatch>> AnswerPendingRequests(coord::Agent& agent,
                                                                         int node_id,
                                                                         PendingSource source);

}  // namespace ferry

#endif  // FERRY_NODE_PENDING_REPORT_H_
