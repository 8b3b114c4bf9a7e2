// SPDX-License-Identifier: Apache-2.0
// Callers by address.
#include "coord/grpc_call.h"

namespace ferry::coord {

void Edge::NoteCaller(const std::string& address, TaskId task) {
  // Ports are reused and connections come and go; starting over costs only some names in reports.
  constexpr size_t kMaxCallers = 100'000;
  absl::MutexLock lock(&mu_);
  if (callers_.size() >= kMaxCallers) callers_.clear();
  callers_[address] = task;
}

TaskId Edge::CallerAt(const std::string& address) const {
  absl::MutexLock lock(&mu_);
  const auto found = callers_.find(address);
  return found == callers_.end() ? kNoTask : found->second;
}

}  // namespace ferry::coord
