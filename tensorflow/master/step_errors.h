// SPDX-License-Identifier: Apache-2.0
// StepErrors: of what went wrong in a step, what the client is told.
#ifndef FERRY_TENSORFLOW_MASTER_STEP_ERRORS_H_
#define FERRY_TENSORFLOW_MASTER_STEP_ERRORS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ferry::master {

// Not thread-safe. The cause comes before what follows from it, whichever arrived first.
// Source: tsl/platform/status.cc, StatusGroup.
class StepErrors final {
 public:
  // An error of a worker. What ends with CANCELLED after Cause or Add has been called follows from
  // that. UNAVAILABLE is a worker that has lost another one, which will be told of by itself, and
  // by its name.
  void Add(absl::string_view worker, const absl::Status& error);
  // Why the step was called off, if nothing went wrong before.
  void Cause(absl::Status cause);

  // The root cause has not been reported in time: the first error stands in for it, unless a worker
  // still reports it. Calls that end with CANCELLED from now on are consequences.
  void GiveUpOnCause();

  bool has_root() const { return !roots_.empty(); }
  bool empty() const { return roots_.empty() && derived_.empty(); }
  // OK if there are none; the root, or several of them in one text with the code of the first; if
  // all are derived, the first of them. Never UNAVAILABLE: clients would repeat what may have
  // begun.
  absl::Status Summary() const;

 private:
  bool has_given_up_ = false;
  std::vector<absl::Status> roots_;
  std::vector<absl::Status> derived_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_ERRORS_H_
