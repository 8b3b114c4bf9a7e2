// SPDX-License-Identifier: Apache-2.0
// ResponseCache: answers that are kept so that a request which comes again gets the same one.
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

// What a worker answers a request for a value with.
struct ServedValue {
  // Not valid if is_dead.
  Tensor tensor;
  bool is_dead = false;
  // When the value was there; since 1970.
  int64_t send_start_micros = 0;
  // It is kept until MarkFinished.
  bool require_ack = false;
};

// Called exactly once, with no lock held; the value only means something if the status is OK.
using ServedCallback = absl::AnyInvocable<void(absl::Status, ServedValue) &&>;

struct ResponseCacheLimits {
  // Requests that wait or are kept.
  size_t max_entries = 100'000;
  // Of values that are kept. They are shared with whoever else holds the tensor, not copied.
  size_t max_bytes = ShareOfMemory(size_t{4} << 30, 4);
  // Requests whose value is not kept any more, which are remembered to be refused.
  size_t max_forgotten = 100'000;
};

// By request id. The first request is to be served by whoever asked (Attach says so); those that
// come again wait for the same value or get it at once. A value goes when its client has marked it
// finished, when its step is cleaned up, or, over max_bytes or max_entries, when it is the one that
// has been there for longest; a request for it that comes afterwards ends ABORTED instead of
// waiting for a value that is gone. Errors are not kept: they have consumed nothing, so a request
// that comes again is a first one. What waits is never thrown out; when only such is left the next
// request ends RESOURCE_EXHAUSTED.
// Thread-safe. Callbacks run on the thread of whoever completes them.
// Source: tensorflow/core/distributed_runtime/rpc/grpc_response_cache.h.
class ResponseCache final {
 public:
  explicit ResponseCache(ResponseCacheLimits limits = {});
  // Whoever still waits gets CANCELLED.
  ~ResponseCache();

  ResponseCache(const ResponseCache&) = delete;
  ResponseCache& operator=(const ResponseCache&) = delete;

  // `done` waits for the value of the request. True: it is the first, and the caller now has to see
  // to it that Complete is called. `cancellation` may be null; it ends only this wait.
  //   Errors, through `done`: as Complete was told; CANCELLED; ABORTED for a value that is gone;
  //   RESOURCE_EXHAUSTED naming the limit.
  //   REQUIRES: request_id is not 0.
  bool Attach(int64_t request_id, int64_t step_id, CancellationToken* cancellation,
              ServedCallback done);

  // The request's value or error: everyone who waits for it gets it, marked as to be acknowledged
  // if it is kept. Of a request that does not wait it does nothing.
  void Complete(int64_t request_id, const absl::Status& status, ServedValue value);

  // The client has the value. Unknown ids, and values that are not there yet, are left alone.
  void MarkFinished(int64_t request_id);
  // The step is over: its values go, and those that are still to come will not be kept.
  void CleanupStep(int64_t step_id);

  // Requests that wait or are kept, and the bytes of the latter.
  size_t entry_count() const;
  size_t bytes() const;
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const;

 private:
  class Core;

  // Shared with cancellations, which may come when this is gone.
  const std::shared_ptr<Core> core_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RESPONSE_CACHE_H_
