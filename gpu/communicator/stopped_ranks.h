// SPDX-License-Identifier: Apache-2.0
// StoppedRanks: which ranks of a communicator have stopped their operations.
#ifndef FERRY_GPU_COMMUNICATOR_STOPPED_RANKS_H_
#define FERRY_GPU_COMMUNICATOR_STOPPED_RANKS_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "gpu/communicator/communicator_key.h"

namespace ferry {

// ncclCommAbort frees memory that kernels of other ranks of the machine may read. So a rank that
// aborts reports in the store, under CommunicatorKey::StoppedKey, when its own operations have
// stopped, and frees nothing before the others have reported the same, for a while
// (CommunicatorEnd). This collects the reports of one communicator, of all generations.
// Thread-safe.
class StoppedRanks final {
 public:
  using IsGone = std::function<bool(const CommunicatorMember& member)>;

  // `is_gone`: whether the member's process has ended, as far as known; such a rank is not waited
  // for. Called with no lock held; null: unknown. REQUIRES: 0 <= rank < key.size().
  StoppedRanks(CommunicatorKey key, int rank, IsGone is_gone)
      : key_(std::move(key)), rank_(rank), is_gone_(std::move(is_gone)) {}

  // An entry was set in the store.
  void OnEntry(absl::string_view key) ABSL_LOCKS_EXCLUDED(mu_);
  // No rank is waited for from now on.
  void IgnoreAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns true once all other ranks have reported or are gone, or are ignored.
  bool HaveOthersStopped(uint32_t generation) const ABSL_LOCKS_EXCLUDED(mu_) {
    return Missing(generation).empty();
  }
  // "ranks 1,2 (devices 5,7)": those that have not.
  std::string DescribeMissing(uint32_t generation) const ABSL_LOCKS_EXCLUDED(mu_) {
    return key_.DescribeRanks(Missing(generation));
  }

 private:
  std::vector<int> Missing(uint32_t generation) const ABSL_LOCKS_EXCLUDED(mu_);

  const CommunicatorKey key_;
  const int rank_;
  const IsGone is_gone_;
  mutable absl::Mutex mu_;
  std::set<std::pair<uint32_t, int>> stopped_ ABSL_GUARDED_BY(mu_);
  bool are_ignored_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_STOPPED_RANKS_H_
