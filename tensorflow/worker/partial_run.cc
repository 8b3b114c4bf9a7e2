// SPDX-License-Identifier: Apache-2.0
// Joins the end of a run and of its last call.
#include "tensorflow/worker/partial_run.h"

#include <utility>

namespace ferry::worker {

void PartialRun::EndRun(absl::Status status) {
  Done done;
  {
    absl::MutexLock lock(&mu_);
    run_ = status;
    if (done_ == nullptr) return;
    done = std::move(done_);
    done_ = nullptr;
    if (status.ok()) status = last_call_;
  }
  std::move(done)(std::move(status));
}

void PartialRun::EndLastCall(absl::Status status, Done done) {
  {
    absl::MutexLock lock(&mu_);
    if (done_ != nullptr) {
      status = absl::AbortedError("the last call of this partial run has come before");
    } else if (!run_.has_value()) {
      last_call_ = std::move(status);
      done_ = std::move(done);
      return;
    }
    if (run_.has_value() && !run_->ok()) status = *run_;
  }
  std::move(done)(std::move(status));
}

}  // namespace ferry::worker
