// SPDX-License-Identifier: Apache-2.0
// A queue limited in steps and rows.
#include "tensorflow/worker/transfer_log.h"

#include <algorithm>
#include <utility>

namespace ferry::worker {

void TransferLog::Switch(bool on) {
  absl::MutexLock lock(&mu_);
  // Masters may switch it off without having switched it on.
  wanted_ = std::max(0, wanted_ + (on ? 1 : -1));
}

bool TransferLog::is_on() const {
  absl::MutexLock lock(&mu_);
  return wanted_ > 0;
}

void TransferLog::Add(int64_t step_id, tensorflow::StepStats rows) {
  size_t count = 0;
  for (const auto& device : rows.dev_stats()) {
    count += static_cast<size_t>(device.node_stats_size());
  }
  if (count == 0) return;
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(steps_.begin(), steps_.end(),
                                  [step_id](const Step& step) { return step.id == step_id; });
  if (found == steps_.end()) {
    steps_.push_back({step_id, count, std::move(rows)});
  } else {
    found->row_count += count;
    found->rows.MergeFrom(rows);
  }
  row_count_ += count;
  while (steps_.size() > max_steps_ || row_count_ > max_rows_) {
    row_count_ -= steps_.front().row_count;
    steps_.pop_front();
  }
}

std::optional<tensorflow::StepStats> TransferLog::Take(int64_t step_id) {
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(steps_.begin(), steps_.end(),
                                  [step_id](const Step& step) { return step.id == step_id; });
  if (found == steps_.end()) return std::nullopt;
  tensorflow::StepStats rows = std::move(found->rows);
  row_count_ -= found->row_count;
  steps_.erase(found);
  return rows;
}

void TransferLog::Clear() {
  absl::MutexLock lock(&mu_);
  steps_.clear();
  row_count_ = 0;
}

}  // namespace ferry::worker
