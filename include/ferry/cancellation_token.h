// SPDX-License-Identifier: Apache-2.0
// CancellationToken: ends several operations at once, with a reason.
#ifndef FERRY_INCLUDE_FERRY_CANCELLATION_TOKEN_H_
#define FERRY_INCLUDE_FERRY_CANCELLATION_TOKEN_H_

#include <memory>

#include "absl/status/status.h"

#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// A handle: copies refer to the same token, which lives as long as any of them or any operation
// that was given one. Thread-safe.
//   ferry::CancellationToken cancellation;
//   ferry::Request request = step.Recv(id, {.cancellation = cancellation});
//   cancellation.Cancel(absl::CancelledError("the user has closed the window"));
class CancellationToken {
 public:
  CancellationToken();
  // A move is a copy too.
  CancellationToken(const CancellationToken&) = default;
  CancellationToken& operator=(const CancellationToken&) = default;

  // Cancels permanently. Operations that were given this token end with `reason`, those that are
  // given it later end at once. Callbacks of these operations may run on this thread. The first
  // reason counts. Returns false if already cancelled, or if `reason` is OK.
  bool Cancel(const absl::Status& reason = absl::CancelledError("cancelled by the caller"));
  bool is_cancelled() const;
  // The reason, or OK while not cancelled.
  absl::Status status() const;

 private:
  class Impl;
  friend class ApiAccess;

  std::shared_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_CANCELLATION_TOKEN_H_
