// SPDX-License-Identifier: Apache-2.0
// The details are payloads of the status.
#include <ferry/error_details.h>

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "api/transfer_error.h"
#include "coord/core/errors.h"

namespace ferry::v0 {
namespace {

constexpr char kPhaseUrl[] = "ferry/transfer_phase";
// A job's nodes, at most.
constexpr int kMaxRank = 1 << 20;

}  // namespace

std::vector<int> MissingRanks(const absl::Status& error) {
  std::vector<int> ranks;
  for (const absl::string_view range :
       absl::StrSplit(coord::GetMissingTasks(error), ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) continue;
    if (!absl::SimpleAtoi(ends.second, &last)) last = first;
    for (int rank = first; rank <= last && rank < kMaxRank; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

std::string TransferPhase(const absl::Status& error) {
  const absl::optional<absl::Cord> phase = error.GetPayload(kPhaseUrl);
  return phase.has_value() ? std::string(*phase) : std::string();
}

absl::Status TransferTimeout(absl::string_view waited, absl::string_view what,
                             absl::string_view phase) {
  absl::Status status =
      absl::DeadlineExceededError(absl::StrCat("waited ", waited, " in ", what, ": ", phase));
  status.SetPayload(kPhaseUrl, absl::Cord(phase));
  return status;
}

}  // namespace ferry::v0
