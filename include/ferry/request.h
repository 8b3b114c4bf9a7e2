// SPDX-License-Identifier: Apache-2.0
// Request: a handle to a send or receive.
#ifndef FERRY_INCLUDE_FERRY_REQUEST_H_
#define FERRY_INCLUDE_FERRY_REQUEST_H_

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include <ferry/namespace.h>
#include <ferry/tensor.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// One send or receive. Move-only. The destructor cancels an operation that is not done; to let it
// run without its request, use OnComplete. Thread-safe, except for moving, OnComplete, Notify
// and the destructor. A request may outlive its node: its operation is done then.
class [[nodiscard]] Request {
 public:
  // No operation: done() is true, and Wait fails with FAILED_PRECONDITION.
  Request() = default;
  Request(Request&& other) noexcept = default;
  Request& operator=(Request&& other) noexcept;
  ~Request();

  // Blocks until the operation is done, for `timeout` at most, and returns the tensor that was
  // received, or for a send the one that was sent. A call that times out does not end the
  // operation: wait again, or cancel it. May be called again after the operation is done.
  //   Errors: those of the operation (Step::Send, Step::Recv); DEADLINE_EXCEEDED naming the tensor
  //   and how far its transfer has got; FAILED_PRECONDITION called inside a callback of OnComplete
  //   while the operation is not done, which would deadlock.
  absl::StatusOr<Tensor> Wait(absl::Duration timeout);

  // Never blocks.
  bool done() const;
  // The same, after this thread has handled what has arrived at the node, unless another one is
  // about to: for programs that poll. Callbacks of other operations may run on this thread.
  bool Poll();

  // Ends the operation with `reason`, unless it is done. Returns without waiting for the peer: a
  // tensor that the peer has matched with this receive by then is discarded. Afterwards a
  // destination buffer in host memory is not written any more. Memory of a GPU may still be written
  // by work that is already enqueued there, and is kept alive until then.
  void Cancel(const absl::Status& reason = absl::CancelledError("cancelled by the caller"));

  // Hands the operation over to `callback`, which is called exactly once, with what Wait would
  // return: at once, on this thread, if the operation is done, otherwise on a thread of the node,
  // on one that cancels or sends, or on one that waits, for whatever request or flush, since a
  // waiting thread drives the node's transfers: hold no lock while waiting that a callback takes.
  // If callbacks are nested 16 deep on that thread, it is called when the outermost of them has
  // returned. It must not block, as all transfers of the node wait for it, nor throw, nor destroy
  // the node; it may start further operations, which end with CANCELLED once the node is being
  // destroyed. A chain of callbacks that each start an operation which fails at once never ends,
  // and keeps its thread. Null: the operation just continues. The request is empty afterwards.
  void OnComplete(absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&> callback) &&;

  // As OnComplete, but the request keeps the operation, and all its methods can still be used:
  // `on_done` is called exactly once, when done() is true. A later call replaces a callback that
  // was not called yet.
  void Notify(absl::AnyInvocable<void() &&> on_done);

  // The path that the bytes took: "shm", "tcp", "cuda_ipc", "nccl"; for small tensors "eager" if
  // they were sent before they were requested, and "inline" if they came with the answer to the
  // request; "local" within the process. Empty until the operation is done, after an error, and for
  // sends, whose receiver selects the path.
  std::string path() const;

 private:
  class Impl;
  friend class ApiAccess;

  std::shared_ptr<Impl> impl_;
};

// Waits for all of them, for `timeout` in all. Returns the first error in the order of `requests`;
// the other requests continue.
absl::Status WaitAll(absl::Span<Request> requests, absl::Duration timeout);

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_REQUEST_H_
