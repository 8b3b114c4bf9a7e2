// SPDX-License-Identifier: Apache-2.0
// Step: a scope of sends and receives; a tensor sent in a step is received in the same step.
#ifndef FERRY_NODE_STEP_H_
#define FERRY_NODE_STEP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "gpu/cuda/driver_types.h"
#include "rendezvous/key.h"
#include "rendezvous/remote_rendezvous.h"
#include "tensor/tensor.h"

namespace ferry {

class TransferEngine;

// A handle: cheap to copy, thread-safe; the Node must outlive it. Every participating process opens
// the step under the same id, in any order; requests that arrive earlier wait.
class Step final {
 public:
  int64_t id() const { return rendezvous_->step_id(); }

  // Sends `tensor` to the receiver of `key`. Never blocks; the receive may be posted before or
  // after. Do not modify the tensor afterwards: its memory may be shared with the receiver instead
  // of copied. Tensors of one key arrive in the order in which they were sent.
  //   Errors: INVALID_ARGUMENT unless the key's source is this node; ABORTED the step is closed;
  //   RESOURCE_EXHAUSTED naming the limit.
  // A tensor in GPU memory must be complete, or be sent with the stream that writes it: see below.
  absl::Status Send(const RendezvousKey& key, Tensor tensor);
  // Sends a tensor that work enqueued on `stream` so far is still writing: receivers read it after
  // that work. No thread waits for the stream. The first use of a GPU initializes it, which may be
  // slow.
  //   Errors: also INVALID_ARGUMENT for a tensor in host memory, FAILED_PRECONDITION when this node
  //   uses no GPUs.
  absl::Status Send(const RendezvousKey& key, const Tensor& tensor, cuda::Stream stream);
  // As Send for each of them, those of a key in this order: small ones for one node share messages,
  // and wake it once. Each has a status of its own.
  void SendMany(absl::Span<SendItem> items);
  // As Send: notifies the receiver that there will be no tensor.
  absl::Status SendDead(const RendezvousKey& key);

  // Returns the tensor, in the memory of the key's destination; blocks until it has arrived. It may
  // be a view of the sender's memory, which stays valid until the last copy of the tensor is
  // destroyed.
  //   Errors: DEADLINE_EXCEEDED naming the key and its progress; INVALID_ARGUMENT unless the key's
  //   destination is this node; UNAVAILABLE the sender has died or is unreachable; ABORTED the step
  //   is closed, or the sender was restarted; FAILED_PRECONDITION a dead tensor was sent, or no
  //   transport is allowed, or this is called inside a callback of RecvAsync.
  absl::StatusOr<Tensor> Recv(const RendezvousKey& key, absl::Duration timeout);
  // Receives into memory of the key's destination, a GPU, for work that is enqueued on `stream`
  // from now on; no other stream may read it before that. No thread waits for the bytes. Keep the
  // tensor until the work that reads it has completed, or register that use with cuda::AddUse.
  absl::StatusOr<Tensor> Recv(const RendezvousKey& key, absl::Duration timeout,
                              cuda::Stream stream);
  // As Recv, with the metadata that was received; a dead tensor is not an error here.
  absl::StatusOr<Received> RecvValue(const RendezvousKey& key, absl::Duration timeout,
                                     RecvArgs args = {});
  // Receives into the elements of `destination`, of the same type and size; they are complete on
  // return, also in GPU memory. After an error a destination in host memory is not written any
  // more; to one in GPU memory, work already enqueued on the device still writes, and the buffer is
  // kept alive until it has finished.
  //   Errors: as Recv; INVALID_ARGUMENT when a tensor of another type or size arrives, which is
  //   lost.
  absl::Status RecvInto(const RendezvousKey& key, Tensor destination, absl::Duration timeout);
  // Calls `done` once, when the tensor has arrived or the receive has failed: on a thread of the
  // node, on the sender's thread if the sender is in this process, or inline if the tensor is
  // already there. `done` must not block.
  void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // As RecvAsync for each of them, in this order. Those from other nodes are posted together.
  void RecvManyAsync(absl::Span<RecvItem> items);

  // Blocks until every send of this step so far has been received; the step stays open.
  //   Errors: as Close; DEADLINE_EXCEEDED naming the sends that were not received. A send that has
  //   failed is reported by every later Flush, and by Close.
  absl::Status Flush(absl::Duration timeout);
  // Blocks until every send of this step has been received, then closes the step locally. Later
  // requests for it fail with ABORTED. The cost does not depend on other steps or their traffic.
  // Inside a callback it closes the step without waiting.
  //   Errors: DEADLINE_EXCEEDED naming the sends that were not received, FAILED_PRECONDITION the
  //   same inside a callback; UNAVAILABLE or ABORTED the receiver of a send has died, was
  //   restarted, or cancelled in the middle of a tensor; the status of Abort if it was called
  //   before every send was received; the receiver's error for a tensor that it rejected: by
  //   another transport than it requires, not of its buffer's type and size, corrupted. The step is
  //   closed in every case. Over gRPC a tensor counts as received when its last byte has been
  //   passed to the kernel.
  absl::Status Close(absl::Duration timeout);
  // Closes the step at once; pending operations of this node fail with `why`.
  void Abort(const absl::Status& why);
  // OK while the step is open on this node, else what its operations fail with.
  absl::Status ended() const { return rendezvous_->abort_status(); }

  // How far a receive that is pending here has got: "not sent yet".
  std::string ReceivePhase(const RendezvousKey& key) const;

  // For TransferEngine::OpenStep. `rendezvous` has been initialized.
  Step(TransferEngine& engine, std::shared_ptr<RemoteRendezvous> rendezvous)
      : engine_(&engine), rendezvous_(std::move(rendezvous)) {}

 private:
  // A transfer of registered memory keeps it, and is named by errors of its end, wherever its
  // tensor goes (ExportRegistry::Hold).
  Tensor HoldRegistered(const RendezvousKey& key, Tensor tensor) const;
  void HoldDestination(const RendezvousKey& key, RecvArgs& args) const;
  // True unless the value arrives where the receiver wants it.
  bool NeedsDelivery(const RendezvousKey& key, const RecvArgs& args) const;
  // Does that, and then calls `done`.
  RecvCallback Delivery(const RendezvousKey& key, RecvCallback&& done);
  // Waits until every send has been received and acknowledged; on the loop's thread it only looks.
  // Returns false if some have not been received, and describes them in `left`.
  bool AwaitSends(absl::Time deadline, std::string& left);
  // The operations that Close has waited for in vain, human-readable.
  std::string DescribeOutstanding() const;

  TransferEngine* engine_;
  std::shared_ptr<RemoteRendezvous> rendezvous_;
};

}  // namespace ferry

#endif  // FERRY_NODE_STEP_H_
