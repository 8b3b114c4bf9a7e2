// SPDX-License-Identifier: Apache-2.0
// PutPool: the blocks of a GPU's window for puts.
#include "transport/nccl/put_pool.h"

#include <algorithm>

#include "base/status_macros.h"

namespace ferry {

PutPool::PutPool(uint64_t bytes) : bytes_(bytes / kAlignment * kAlignment) {
  if (bytes_ > 0) free_[0] = bytes_;
}

std::optional<uint64_t> PutPool::Take(uint64_t bytes) {
  if (bytes == 0 || bytes > bytes_) return std::nullopt;
  const uint64_t size = Rounded(bytes);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < size) continue;
    const auto [offset, room] = *it;
    free_.erase(it);
    if (room > size) free_[offset + size] = room - size;
    taken_[offset] = size;
    used_bytes_ += size;
    return offset;
  }
  return std::nullopt;
}

bool PutPool::HasRoom(uint64_t bytes) const {
  if (bytes == 0 || bytes > bytes_) return false;
  return std::any_of(free_.begin(), free_.end(),
                     [size = Rounded(bytes)](const auto& hole) { return hole.second >= size; });
}

void PutPool::Give(uint64_t offset) {
  const auto found = taken_.find(offset);
  FERRY_CHECK(found != taken_.end());
  uint64_t begin = offset;
  uint64_t end = offset + found->second;
  used_bytes_ -= found->second;
  taken_.erase(found);
  const auto after = free_.find(end);
  if (after != free_.end()) {
    end += after->second;
    free_.erase(after);
  }
  auto before = free_.lower_bound(begin);
  if (before != free_.begin()) {
    --before;
    if (before->first + before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  }
  free_[begin] = end - begin;
}

uint64_t PutPool::Retire(uint64_t offset) {
  const auto found = taken_.find(offset);
  FERRY_CHECK(found != taken_.end());
  retired_bytes_ += found->second;
  return found->second;
}

}  // namespace ferry
