// SPDX-License-Identifier: Apache-2.0
// StoppedRanks: which ranks of a communicator have stopped their operations.
#include "gpu/communicator/stopped_ranks.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ferry {

void StoppedRanks::OnEntry(absl::string_view key) {
  if (!absl::ConsumePrefix(&key, key_.prefix())) return;
  // "<generation>/stopped/<rank>".
  const std::vector<absl::string_view> parts = absl::StrSplit(key, '/');
  uint32_t generation = 0;
  int rank = 0;
  if (parts.size() != 3 || parts[1] != "stopped" || !absl::SimpleAtoi(parts[0], &generation) ||
      !absl::SimpleAtoi(parts[2], &rank) || rank < 0 || rank >= key_.size()) {
    return;
  }
  absl::MutexLock lock(&mu_);
  stopped_.emplace(generation, rank);
}

void StoppedRanks::IgnoreAll() {
  absl::MutexLock lock(&mu_);
  are_ignored_ = true;
}

std::vector<int> StoppedRanks::Missing(uint32_t generation) const {
  std::vector<int> missing;
  {
    absl::MutexLock lock(&mu_);
    if (are_ignored_) return missing;
    for (int rank = 0; rank < key_.size(); ++rank) {
      if (rank != rank_ && !stopped_.contains({generation, rank})) missing.push_back(rank);
    }
  }
  if (!is_gone_) return missing;
  missing.erase(std::remove_if(missing.begin(), missing.end(),
                               [this](int rank) { return is_gone_(key_.member(rank)); }),
                missing.end());
  return missing;
}

}  // namespace ferry
