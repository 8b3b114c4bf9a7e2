// SPDX-License-Identifier: Apache-2.0
// The names of holders, in order.
#include "gpu/cuda/memory_holders.h"

#include <utility>
#include <vector>

#include "base/bounded_text.h"

namespace ferry::cuda {
namespace {

constexpr size_t kNamed = 3;

}  // namespace

MemoryHolders::Id MemoryHolders::Add(std::string name) {
  absl::MutexLock lock(&mu_);
  names_.emplace(++last_id_, std::move(name));
  return last_id_;
}

void MemoryHolders::Remove(Id id) {
  absl::MutexLock lock(&mu_);
  names_.erase(id);
}

std::string MemoryHolders::Describe() const {
  std::vector<std::string> named;
  absl::MutexLock lock(&mu_);
  if (names_.empty()) return "";
  for (const auto& [id, name] : names_) {
    if (named.size() == kNamed) break;
    named.push_back(name);
  }
  return BoundedList(named, kNamed, names_.size());
}

void MemoryHolders::End() {
  absl::MutexLock lock(&mu_);
  has_ended_ = true;
}

bool MemoryHolders::has_ended() const {
  absl::MutexLock lock(&mu_);
  return has_ended_;
}

bool MemoryHolders::AwaitEnd(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&has_ended_), timeout);
}

}  // namespace ferry::cuda
