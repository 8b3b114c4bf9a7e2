// SPDX-License-Identifier: Apache-2.0
// StepErrors: combines a step's errors into the one reported to the client.
#ifndef FERRY_TENSORFLOW_MASTER_STEP_ERRORS_H_
#define FERRY_TENSORFLOW_MASTER_STEP_ERRORS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ferry::master {

// Not thread-safe. A root cause takes precedence over derived errors, regardless of arrival order.
// Source: tsl/platform/status.cc, StatusGroup.
class StepErrors final {
 public:
  // Adds a worker's error. CANCELLED counts as derived once there is a root cause. So does
  // UNAVAILABLE always: the worker lost a peer, whose loss is reported separately and by name.
  void Add(absl::string_view worker, const absl::Status& error);
  // Sets why the step was cancelled, unless there is a root cause already.
  void Cause(absl::Status cause);

  // The root cause was not reported in time: the first error stands in for it, unless a worker
  // still reports it. CANCELLED counts as derived from now on.
  void GiveUpOnCause();

  bool has_root() const { return !roots_.empty(); }
  bool empty() const { return roots_.empty() && derived_.empty(); }
  // Returns OK if there are no errors; the root cause; several roots combined, with the code of the
  // first; or the first derived error if there are only those. Never UNAVAILABLE: clients would
  // retry a step that may have started.
  absl::Status Summary() const;

 private:
  bool has_given_up_ = false;
  std::vector<absl::Status> roots_;
  std::vector<absl::Status> derived_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_ERRORS_H_
