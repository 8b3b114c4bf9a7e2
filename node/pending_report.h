// SPDX-License-Identifier: Apache-2.0
// What the operations of a job are waiting for: asked for and answered through the store.
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

// 1. Whoever wants to know sets kPendingRequestKey to anything that it was not before.
// 2. Every node of the job that moves tensors watches that key, and sets PendingKey(node) to what
//    waits in it by then.
// 3. An answer is later than the request if its revision is.
// Two who ask at a time do not disturb each other: what answers the later one answers the first.
inline constexpr char kPendingRequestKey[] = "ferry/pending-request";
inline constexpr char kPendingPrefix[] = "ferry/pending/";
std::string PendingKey(int node_id);

// An answer holds this many at most, the oldest, and says how many there are.
inline constexpr size_t kMaxPendingRows = 64;
// What is younger is on its way, and not stuck.
inline constexpr absl::Duration kPendingAge = absl::Seconds(1);

struct PendingRow {
  int64_t step_id = 0;
  // "send": it waits for a receiver, or is on its way to one; "recv": it waits for a sender. What a
  // peer asks for waits on both sides, and is told by both.
  std::string side;
  // The node on the other side.
  int64_t peer = 0;
  absl::Duration age;
  size_t bytes = 0;
  std::string key;
  // How far it is, for people.
  std::string phase;

  friend bool operator==(const PendingRow&, const PendingRow&) = default;
};

struct PendingReport {
  int64_t total = 0;
  // The oldest first.
  std::vector<PendingRow> rows;

  friend bool operator==(const PendingReport&, const PendingReport&) = default;
};

// TransferEngine::ForEachPending.
using PendingSource = std::function<void(absl::Duration min_age, PendingVisitor visit)>;

PendingReport MakePendingReport(const PendingSource& source, absl::Duration min_age);

// A line for each, with tabs between the fields.
std::string EncodePending(const PendingReport& report);
//   Errors: INVALID_ARGUMENT quoting the line.
absl::StatusOr<PendingReport> DecodePending(absl::string_view text);

// Answers as long as it lives. `agent` and what `source` needs outlive the watch.
//   Errors: as Agent::Watch.
absl::StatusOr<std::unique_ptr<coord::AgentWatch>> AnswerPendingRequests(coord::Agent& agent,
                                                                         int node_id,
                                                                         PendingSource source);

}  // namespace ferry

#endif  // FERRY_NODE_PENDING_REPORT_H_
