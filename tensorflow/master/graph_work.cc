// SPDX-License-Identifier: Apache-2.0
// Counts queued work.
#include "tensorflow/master/graph_work.h"

#include "absl/strings/str_cat.h"

namespace ferry::master {

absl::Status GraphWork::Enter(size_t bytes) {
  absl::MutexLock lock(&mu_);
  if (count_ >= limits_.max_waiting_graphs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_waiting_graphs (", limits_.max_waiting_graphs,
                     ") requests wait for the master to read their graphs: try again later"));
  }
  if (bytes > limits_.max_waiting_bytes || bytes_ > limits_.max_waiting_bytes - bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "A request of ", bytes, " bytes, while others of ", bytes_,
        " wait for the master to read them: max_waiting_bytes is ", limits_.max_waiting_bytes));
  }
  ++count_;
  bytes_ += bytes;
  return absl::OkStatus();
}

void GraphWork::Leave(size_t bytes) {
  absl::MutexLock lock(&mu_);
  --count_;
  bytes_ -= bytes;
}

void GraphWork::Add(size_t bytes, Work work) {
  if (absl::Status status = Enter(bytes); !status.ok()) return std::move(work)(std::move(status));
  run_([this, bytes, work = std::move(work)]() mutable {
    Leave(bytes);
    std::move(work)(absl::OkStatus());
  });
}

}  // namespace ferry::master
