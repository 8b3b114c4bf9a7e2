// SPDX-License-Identifier: Apache-2.0
// Turns statuses into the exceptions of ferry._errors.
#ifndef FERRY_PYTHON_SRC_ERRORS_H_
#define FERRY_PYTHON_SRC_ERRORS_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::python {

// The fields of an exception besides its message; absent ones are None.
struct ErrorContext {
  // The tensor's or the store's key.
  std::string key;
  // The peer of a transfer, and its host.
  std::optional<int> rank;
  std::string host;
  // How long the call has waited.
  std::optional<absl::Duration> waited;
};

// All of these REQUIRE the GIL, and throw nb::python_error.

// REQUIRES: not OK.
[[noreturn]] void Raise(const absl::Status& status, const ErrorContext& context = {});
void Check(const absl::Status& status, const ErrorContext& context = {});

template <typename T>
T ValueOf(absl::StatusOr<T> value, const ErrorContext& context = {}) {
  if (!value.ok()) Raise(value.status(), context);
  return *std::move(value);
}

// Python's own exceptions.
[[noreturn]] void RaiseTypeError(absl::string_view message);
[[noreturn]] void RaiseValueError(absl::string_view message);
[[noreturn]] void RaiseBufferError(absl::string_view message);

}  // namespace ferry::python

#endif  // FERRY_PYTHON_SRC_ERRORS_H_
