// SPDX-License-Identifier: Apache-2.0
// CommunicatorLru: LRU eviction of entries that are not in use.
#include "transport/nccl/communicator_lru.h"

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {

absl::StatusOr<std::vector<std::string>> CommunicatorLru::Reserve(absl::string_view key,
                                                                  uint64_t bytes) {
  if (entries_.contains(key)) return absl::AlreadyExistsError(key);
  uint64_t idle_bytes = 0;
  for (const std::string& idle : idle_) idle_bytes += entries_.find(idle)->second.bytes;
  const uint64_t busy_bytes = used_bytes_ - idle_bytes;
  if (bytes > budget_bytes_ || busy_bytes > budget_bytes_ - bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a communicator of ", bytes, " bytes has no room: those in use take ", busy_bytes, " of ",
        budget_bytes_, " (raise --nccl-memory-bytes, or exchange with fewer GPUs at a time)"));
  }
  std::vector<std::string> evicted;
  while (used_bytes_ > budget_bytes_ - bytes) {
    evicted.push_back(idle_.front());
    Remove(evicted.back());
  }
  entries_.emplace(key, Entry{bytes, 1, idle_.end()});
  used_bytes_ += bytes;
  return evicted;
}

bool CommunicatorLru::Use(absl::string_view key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  if (found->second.use_count++ == 0) idle_.erase(found->second.idle);
  return true;
}

void CommunicatorLru::Unuse(absl::string_view key) {
  const auto found = entries_.find(key);
  // It was removed while in use.
  if (found == entries_.end()) return;
  FERRY_CHECK(found->second.use_count > 0);
  if (--found->second.use_count > 0) return;
  found->second.idle = idle_.insert(idle_.end(), found->first);
}

void CommunicatorLru::Remove(absl::string_view key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  used_bytes_ -= found->second.bytes;
  if (found->second.use_count == 0) idle_.erase(found->second.idle);
  entries_.erase(found);
}

void CommunicatorLru::Resize(absl::string_view key, uint64_t bytes) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  used_bytes_ += bytes - found->second.bytes;
  found->second.bytes = bytes;
}

}  // namespace ferry
