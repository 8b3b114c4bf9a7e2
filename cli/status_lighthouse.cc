// SPDX-License-Identifier: Apache-2.0
// torchft's quorum and replicas, as text.
#include "cli/status_lighthouse.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "cli/table.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

std::string State(const coord::ReplicaStatus& replica) {
  const std::string silence =
      replica.heartbeat_age == absl::InfiniteDuration()
          ? "silent"
          : absl::StrCat("silent for ", ShortDuration(replica.heartbeat_age));
  if (replica.has_joined) {
    return absl::StrCat("joined, waiting for ", ShortDuration(replica.joined_for),
                        replica.is_healthy ? "" : absl::StrCat("; ", silence));
  }
  if (!replica.is_healthy) return silence;
  return replica.is_in_quorum ? "running" : "not joined";
}

// The sort order if not all are shown.
int Rank(const coord::ReplicaStatus& replica) {
  if (replica.is_in_quorum && !replica.is_healthy) return 0;
  return replica.has_joined ? 1 : 2;
}

}  // namespace

std::string FormatLighthouseText(const std::optional<coord::LighthouseStatus>& lighthouse,
                                 size_t max_lines) {
  if (!lighthouse.has_value()) return "";
  std::string text =
      lighthouse->quorum_id == 0
          ? std::string("\n  torchft lighthouse: no quorum so far\n")
          : absl::StrCat("\n  torchft lighthouse: quorum ", lighthouse->quorum_id, " of ",
                         lighthouse->quorum_size,
                         lighthouse->quorum_size == 1 ? " replica" : " replicas", ", formed ",
                         ShortDuration(lighthouse->quorum_age), " ago\n");
  if (!lighthouse->waits_for.empty()) {
    absl::StrAppend(&text, "  no next quorum yet: ", Printable(lighthouse->waits_for), "\n");
  }
  std::vector<coord::ReplicaStatus> replicas = lighthouse->replicas;
  const size_t shown = std::min(replicas.size(), max_lines);
  if (shown < replicas.size()) {
    std::stable_sort(replicas.begin(), replicas.end(),
                     [](const coord::ReplicaStatus& a, const coord::ReplicaStatus& b) {
                       return Rank(a) < Rank(b);
                     });
    replicas.resize(shown);
  }
  std::vector<std::vector<std::string>> rows = {{"REPLICA", "STEP", "IN QUORUM", "STATE"}};
  for (const coord::ReplicaStatus& replica : replicas) {
    rows.push_back({Quoted(replica.id), absl::StrCat(replica.step),
                    replica.is_in_quorum ? "yes" : "no", State(replica)});
  }
  text += FormatTable(rows, "  ");
  const auto count = static_cast<size_t>(lighthouse->replica_count);
  if (count > shown) absl::StrAppend(&text, "  and ", count - shown, " more\n");
  return text;
}

}  // namespace ferry::cli
