// SPDX-License-Identifier: Apache-2.0
// Blocking calls of Python: with a deadline, without the GIL, ended by Ctrl-C.
#ifndef FERRY_PYTHON_SRC_WAITS_H_
#define FERRY_PYTHON_SRC_WAITS_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <nanobind/nanobind.h>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace ferry::python {

// A `timeout=` argument: seconds as a number, or a timedelta. Not given (nb::none is given):
// `default_timeout`.
// Raises TypeError for None and other types, ValueError for negative and infinite times.
class Timeout final {
 public:
  // The default value of the argument: the job's timeout.
  static nanobind::object Default();
  static absl::Duration Parse(nanobind::handle timeout, absl::Duration default_timeout);
};

// Calls `wait` with the GIL released until it returns true, or `timeout` has passed; returns
// whether it did. Each call waits for as long as it is told, at most, in which Ctrl-C has to wait.
// Raises what a signal handler raises, such as KeyboardInterrupt.
bool WaitInSlices(absl::Duration timeout, absl::FunctionRef<bool(absl::Duration slice)> wait);

// Runs `call`, which blocks and cannot be called in slices: on this thread with the GIL released,
// or, on the main thread, which must handle signals, on one of its own. Raises what a signal
// handler raises, after `interrupt`, which should end the call; the call's thread is not waited
// for, so that what it uses must be owned by it.
//   is_over: ends the wait too, without `interrupt`; null: nothing does. Looked at with the GIL.
// Returns false if that has ended it.
bool RunInterruptibly(std::function<void()> call, const std::function<void()>& interrupt,
                      const std::function<bool()>& is_over = nullptr);

// Waits until no thread is in a call that was interrupted; false: `timeout` has passed. For the end
// of the interpreter: such a thread may hold the last reference to a node.
bool AwaitInterruptedCalls(absl::Duration timeout);

// RunInterruptibly for a call with a result.
template <typename T, typename Call>
T CallInterruptibly(
    Call call, const std::function<void()>& interrupt = [] {}) {
  auto result = std::make_shared<std::optional<T>>();
  RunInterruptibly([result, call = std::move(call)]() mutable { result->emplace(call()); },
                   interrupt);
  return *std::move(*result);
}

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_WAITS_H_
