// SPDX-License-Identifier: Apache-2.0
// Callers by address.
#include "coord/grpc_call.h"

#include <algorithm>

namespace ferry::coord {

void Edge::NoteCaller(const std::string& address, TaskId task) {
  // Ports are reused and connections come and go; starting over costs only some names in reports.
  constexpr size_t kMaxCallers = 100'000;
  absl::MutexLock lock(&mu_);
  if (callers_.size() >= kMaxCallers) callers_.clear();
  std::vector<TaskId>& callers = callers_[address];
  if (std::find(callers.begin(), callers.end(), task) == callers.end()) callers.push_back(task);
}

std::vector<TaskId> Edge::CallersAt(const std::string& address) const {
  absl::MutexLock lock(&mu_);
  const auto found = callers_.find(address);
  return found == callers_.end() ? std::vector<TaskId>() : found->second;
}

TaskId Edge::CallerAt(const std::string& address) const {
  absl::MutexLock lock(&mu_);
  const auto found = callers_.find(address);
  return found == callers_.end() || found->second.size() != 1 ? kNoTask : found->second[0];
}

}  // namespace ferry::coord
