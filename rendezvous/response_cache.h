// SPDX-License-Identifier: Apache-2.0
// ResponseCache: keeps responses so that a repeated request gets the same one.
#ifndef FERRY_RENDEZVOUS_RESPONSE_CACHE_H_
#define FERRY_RENDEZVOUS_RESPONSE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

#include "base/cancellation_token.h"
#include "base/table_sizes.h"
#include "base/usable_resources.h"
#include "tensor/tensor.h"

namespace ferry {

// A worker's response to a request for a value.
struct ServedValue {
  // Not valid if is_dead.
  Tensor tensor;
  bool is_dead = false;
  // When the value was available, in microseconds since 1970.
  int64_t send_start_micros = 0;
  // The value is kept until MarkFinished.
  bool require_ack = false;
};

// Called exactly once, with no lock held; the value is meaningful only if the status is OK.
using ServedCallback = absl::AnyInvocable<void(absl::Status, ServedValue) &&>;

struct ResponseCacheLimits {
  // Requests that wait or are kept.
  size_t max_entries = 100'000;
  // Bytes of kept values. They are shared with other holders of the tensor, not copied.
  size_t max_bytes = ShareOfMemory(size_t{4} << 30, 4);
  // Requests whose value is no longer kept, remembered in order to reject repeats.
  size_t max_forgotten = 100'000;
};

// Keyed by request id. The first request must be served by its caller (Attach says so); repeated
// ones wait for the same value, or get it at once. A value is released when its client has marked
// it finished, when its step is cleaned up, or, above max_bytes or max_entries, when it is the
// oldest; a later request for it ends ABORTED instead of waiting for a value that is gone. Errors
// are not kept: they have consumed nothing, so a repeated request counts as a first one. Waiting
// entries are never evicted; if only such are left, the next request ends RESOURCE_EXHAUSTED.
// Thread-safe. Callbacks run on the thread that completes them.
// Source: tensorflow/core/distributed_runtime/rpc/grpc_response_cache.h.
class ResponseCache final {
 public:
  explicit ResponseCache(ResponseCacheLimits limits = {});
  // Waiting requests end with CANCELLED.
  ~ResponseCache();

  ResponseCache(const ResponseCache&) = delete;
  ResponseCache& operator=(const ResponseCache&) = delete;

  // `done` waits for the value of the request. Returns true for the first request: the caller must
  // then ensure that Complete is called. `cancellation` may be null; it ends only this wait.
  //   Errors, through `done`: the status given to Complete; CANCELLED; ABORTED for a value that is
  //   gone; RESOURCE_EXHAUSTED naming the limit.
  //   REQUIRES: request_id is not 0.
  bool Attach(int64_t request_id, int64_t step_id, CancellationToken* cancellation,
              ServedCallback done);

  // Delivers the request's value or error to everyone waiting for it, marked as to be acknowledged
  // if it is kept. Ignored for a request that is not waiting.
  void Complete(int64_t request_id, const absl::Status& status, ServedValue value);

  // The client has the value. Unknown ids, and values not available yet, are ignored.
  void MarkFinished(int64_t request_id);
  // The step is over: releases its values; those still to come are not kept.
  void CleanupStep(int64_t step_id);

  // Requests that wait or are kept, and the bytes of the latter.
  size_t entry_count() const;
  size_t bytes() const;
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const;

 private:
  class Core;

  // Shared with cancellations, which may outlive this.
  const std::shared_ptr<Core> core_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RESPONSE_CACHE_H_
