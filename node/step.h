// SPDX-License-Identifier: Apache-2.0
// Step: one round of exchange; what is sent in it is received in it.
#ifndef FERRY_NODE_STEP_H_
#define FERRY_NODE_STEP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/cuda/driver_types.h"
#include "rendezvous/key.h"
#include "rendezvous/remote_rendezvous.h"
#include "tensor/tensor.h"

namespace ferry {

class TransferEngine;

// A handle: cheap to copy, thread-safe, outlived by its Node. Every process that takes part opens
// the step under the same id, in any order; what comes before that waits.
class Step final {
 public:
  int64_t id() const { return rendezvous_->step_id(); }

  // Gives `tensor` to whoever receives `key`, now or later; never blocks. It must not be written
  // any more: copies are made only where no memory can be shared. Values of one key arrive in the
  // order in which they were sent.
  //   Errors: INVALID_ARGUMENT unless the key's source is this node; ABORTED the step is closed;
  //   RESOURCE_EXHAUSTED naming the limit.
  // A tensor in a GPU's memory is complete, or is sent with the stream that writes it: below.
  absl::Status Send(const RendezvousKey& key, Tensor tensor);
  // Of a tensor that work enqueued on `stream` so far is still writing: receivers read it after
  // that. No thread waits for it. The first use of a GPU opens it, which may take long.
  //   Errors: also INVALID_ARGUMENT for a tensor in host memory, FAILED_PRECONDITION when this
  //   node uses no GPUs.
  absl::Status Send(const RendezvousKey& key, const Tensor& tensor, cuda::Stream stream);
  // As Send: tells the receiver that there will be no tensor.
  absl::Status SendDead(const RendezvousKey& key);

  // Waits for the tensor, in the memory of the key's destination. It may be a view of the sender's
  // memory, which stays put until the last copy of the tensor is gone.
  //   Errors: DEADLINE_EXCEEDED naming the key and how far it was; INVALID_ARGUMENT unless the
  //   key's destination is this node; UNAVAILABLE the sender has died, or cannot be reached;
  //   ABORTED the step is closed, or the sender was restarted; FAILED_PRECONDITION it was sent
  //   dead, or no transport is allowed, or this is called inside a callback of RecvAsync.
  absl::StatusOr<Tensor> Recv(const RendezvousKey& key, absl::Duration timeout);
  // Into memory of the key's destination, a GPU, for work that is enqueued on `stream` from now on;
  // nobody else may read it before that. No thread waits for the bytes. Keep the tensor until the
  // work that reads it has run, or tell it with cuda::AddUse.
  absl::StatusOr<Tensor> Recv(const RendezvousKey& key, absl::Duration timeout,
                              cuda::Stream stream);
  // As Recv, with everything that came along: dead values are none of an error here.
  absl::StatusOr<Received> RecvValue(const RendezvousKey& key, absl::Duration timeout,
                                     RecvArgs args = {});
  // Into the elements of `destination`, of the same type and size; they are there when it returns,
  // in a GPU's memory too. After an error nothing more is written to a destination in the host's
  // memory; to one in a GPU's, what the device was told before it still writes, and it is kept
  // until then.
  //   Errors: as Recv; INVALID_ARGUMENT when something else comes, which is lost.
  absl::Status RecvInto(const RendezvousKey& key, Tensor destination, absl::Duration timeout);
  // Calls `done` when it has come, or has failed: once, on a thread of the node, or on the sender's
  // if that is here too, or inside if it is there already. `done` must not block.
  void RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done);

  // Waits until everything that was sent has been taken, then ends the step here: whatever comes
  // for it later is refused. What it costs depends on neither other steps nor what they send.
  // Inside a callback it ends the step without waiting.
  //   Errors: DEADLINE_EXCEEDED naming what was not taken, FAILED_PRECONDITION the same inside a
  //   callback; UNAVAILABLE or ABORTED what was sent to
  //   a node that has died or was restarted, or gave up in the middle of a tensor; that of Abort if
  //   it came before everything had been taken; what the
  //   receiver says of a tensor that it did not take: by another transport than it requires, not of
  //   its buffer's type and size, damaged. The step ends all the same. Over gRPC a tensor has been
  //   taken when the kernel has the last of it.
  absl::Status Close(absl::Duration timeout);
  // Ends it at once, with `why` for everything that waits in it here.
  void Abort(const absl::Status& why);

  // TransferEngine::OpenStep makes them. `rendezvous` has been initialized.
  Step(TransferEngine& exchange, std::shared_ptr<RemoteRendezvous> rendezvous)
      : exchange_(&exchange), rendezvous_(std::move(rendezvous)) {}

 private:
  // What Close has waited for in vain, for people.
  std::string DescribeOutstanding() const;

  TransferEngine* exchange_;
  std::shared_ptr<RemoteRendezvous> rendezvous_;
};

}  // namespace ferry

#endif  // FERRY_NODE_STEP_H_
