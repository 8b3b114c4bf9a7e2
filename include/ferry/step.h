// SPDX-License-Identifier: Apache-2.0
// Step: a scope of sends and receives; a tensor sent in a step is received in the same step.
#ifndef FERRY_INCLUDE_FERRY_STEP_H_
#define FERRY_INCLUDE_FERRY_STEP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include <ferry/cancellation_token.h>
#include <ferry/namespace.h>
#include <ferry/request.h>
#include <ferry/tensor.h>
#include <ferry/tensor_id.h>

// CUstream and cudaStream_t point to it.
struct CUstream_st;

namespace ferry {
FERRY_NAMESPACE_BEGIN

struct SendOptions {
  // The CUDA stream whose work, enqueued so far, writes the tensor: receivers read it after that
  // work, and no thread waits for the stream. Null: the elements are complete. Only for tensors in
  // the memory of a GPU.
  CUstream_st* stream = nullptr;
};

struct RecvOptions {
  // Receives into these elements, of the same type and size, on the id's destination device.
  // Invalid: into memory that Ferry provides, which may be a view of the sender's.
  Tensor into;
  // The CUDA stream whose work, enqueued after the request is done, reads the tensor; the request
  // is then done when the sender's elements are complete, and does not wait for Ferry's own copy of
  // them (TransferOptions::gpus_wait_on_device: nor for the sender). Null: it is done when the
  // elements are complete here. Only for tensors that arrive in the memory of a GPU.
  CUstream_st* stream = nullptr;
  // Time from the call after which the receive fails. A tensor that the peer has matched with it by
  // then is discarded, as by Request::Cancel, and its sender is not told.
  absl::Duration timeout = absl::Minutes(5);
  // Ends the receive with the token's reason.
  std::optional<CancellationToken> cancellation;
};

struct SendOperation {
  TensorId id;
  Tensor tensor;
  SendOptions options;
};

struct RecvOperation {
  TensorId id;
  RecvOptions options;
};

// A handle: cheap to copy, thread-safe; the Node must outlive its use. Every participating node
// opens the step under the same id, in any order; requests that arrive earlier wait.
class Step {
 public:
  // A move is a copy too.
  Step(const Step&) = default;
  Step& operator=(const Step&) = default;

  int64_t id() const;

  // Sends `tensor`. Never waits for the receiver; the receive may be posted before or after. The
  // request is done on return: OK means queued and not delivered, which Flush and Close wait for.
  // Do not write the tensor afterwards. Tensors of one id arrive in the order in which they were
  // sent.
  //   Errors: INVALID_ARGUMENT for an invalid tensor or id, a source that is not this node, a
  //   tensor that is not in the memory of the source device, a device that there is not, or a
  //   stream for host memory; ABORTED the step is closed, or the reason of Abort; CANCELLED the
  //   node was destroyed; RESOURCE_EXHAUSTED naming the limit; FAILED_PRECONDITION a stream, and
  //   this node uses no GPUs.
  Request Send(const TensorId& id, Tensor tensor, SendOptions options = {});

  // Receives a tensor, in the memory of the id's destination device. Never blocks. The tensor may
  // be a view of the sender's memory, which stays valid until its last copy is released, also if
  // the sender ends.
  //   Errors: INVALID_ARGUMENT for an invalid id, a destination that is not this node, a device
  //   that there is not, options.into on another device, or a tensor of another type or size than
  //   options.into, or with an element of kBool that is neither 0 nor 1, which is discarded;
  //   DEADLINE_EXCEEDED naming the tensor and how far its transfer has got; UNAVAILABLE the sender
  //   has died or cannot be reached; ABORTED the step is closed on either side, the sender has
  //   left, or was restarted; FAILED_PRECONDITION no transport is allowed, or a device that this
  //   process does not use; CANCELLED the node was destroyed; the reason of Abort or of the
  //   cancellation.
  Request Recv(const TensorId& id, RecvOptions options = {});

  // The same for many operations, in order: the requests are in the order of `operations`, and one
  // that fails does not affect the others. Small tensors for one node share messages, and wake it
  // once.
  std::vector<Request> SendMany(absl::Span<const SendOperation> operations);
  std::vector<Request> RecvMany(absl::Span<const RecvOperation> operations);

  // Blocks until every tensor that this node has sent in the step so far has been received. The
  // step stays open.
  //   Errors: DEADLINE_EXCEEDED naming the sends that were not received; UNAVAILABLE or ABORTED the
  //   receiver of a send has died or was restarted since; a receiver's reason to reject a tensor;
  //   FAILED_PRECONDITION called inside a callback of OnComplete while there are such sends. A
  //   failed send is reported by every later Flush, and by Close.
  absl::Status Flush(absl::Duration timeout);

  // Flushes, and closes the step on this node, in any case: receives that are pending, and later
  // operations, fail with ABORTED. A node cannot open the id again.
  //   Errors: as Flush; the reason of Abort if it was called before every send was received.
  absl::Status Close(absl::Duration timeout);

  // Closes the step on this node at once: its pending operations fail with `reason`; if that is OK,
  // with CANCELLED.
  void Abort(const absl::Status& reason);

 private:
  class Impl;
  friend class ApiAccess;

  explicit Step(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_STEP_H_
