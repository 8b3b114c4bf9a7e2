// SPDX-License-Identifier: Apache-2.0
// A table with an LRU list.
#include "tensorflow/master/step_cache.h"

#include <utility>

namespace ferry::master {

std::shared_ptr<const RegisteredStep> StepCache::Find(const std::string& key) {
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.step == nullptr) return nullptr;
  by_use_.splice(by_use_.end(), by_use_, found->second.use);
  return found->second.step;
}

bool StepCache::Await(const std::string& key, Done done) {
  std::shared_ptr<const RegisteredStep> ready;
  {
    absl::MutexLock lock(&mu_);
    const auto [entry, is_new] = entries_.try_emplace(key);
    if (entry->second.step == nullptr) {
      entry->second.waiting.push_back(std::move(done));
      return is_new;
    }
    ready = entry->second.step;
  }
  std::move(done)(std::move(ready));
  return false;
}

void StepCache::Finish(const std::string& key, Result result) {
  std::vector<Done> waiting;
  // Destroyed after the lock is released: the last reference deregisters at the workers.
  std::shared_ptr<const RegisteredStep> dropped;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(key);
    // Clear was called in the meantime.
    if (found == entries_.end()) return;
    waiting = std::move(found->second.waiting);
    if (!result.ok()) {
      entries_.erase(found);
    } else {
      found->second.step = *result;
      found->second.use = by_use_.insert(by_use_.end(), key);
      if (by_use_.size() > max_steps_) {
        const auto oldest = entries_.find(by_use_.front());
        dropped = std::move(oldest->second.step);
        entries_.erase(oldest);
        by_use_.pop_front();
      }
    }
  }
  for (Done& done : waiting) std::move(done)(result);
}

void StepCache::Clear() {
  // Destroyed after the lock is released.
  absl::flat_hash_map<std::string, Entry> entries;
  absl::MutexLock lock(&mu_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    // Still being made: Finish will answer its waiters.
    if (entry->second.step == nullptr) {
      ++entry;
      continue;
    }
    entries.insert(std::move(*entry));
    entries_.erase(entry++);
  }
  by_use_.clear();
}

size_t StepCache::size() const {
  absl::MutexLock lock(&mu_);
  return entries_.size();
}

}  // namespace ferry::master
