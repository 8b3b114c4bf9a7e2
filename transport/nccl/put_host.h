// SPDX-License-Identifier: Apache-2.0
// PutHost: the device that DevicePuts is a part of.
#ifndef FERRY_TRANSPORT_NCCL_PUT_HOST_H_
#define FERRY_TRANSPORT_NCCL_PUT_HOST_H_

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "gpu/communicator/communicator.h"
#include "tensor/tensor.h"
#include "transport/nccl/batch_agreement_action.h"
#include "transport/nccl/batch_runner.h"
#include "transport/nccl/put_message.h"

namespace ferry {

// It holds DevicePuts under its lock, knows the transfers and communicators, and agrees on batches.
class PutHost {
 public:
  virtual ~PutHost() = default;

  // --- Without the lock ---

  // Calls `change` under the lock. The queue is then performed, here or by the thread that is at
  // it.
  virtual void Run(absl::FunctionRef<void(BatchAgreementActions& actions)> change) = 0;
  // Keeps it alive.
  virtual std::shared_ptr<void> Keep() = 0;
  virtual void SendPut(const PutMessage& message) = 0;
  // The transfer is over: with that status; with its bytes in that memory.
  virtual void Finish(const TransferKey& key, absl::Status status) = 0;
  virtual void Deliver(const TransferKey& key, std::shared_ptr<Buffer> memory) = 0;

  // --- Under the lock ---

  // Performs it without the lock, in the order of the calls.
  virtual void Queue(absl::AnyInvocable<void() &&> work) = 0;
  // The transfer goes in a batch.
  virtual void AddToBatches(const TransferKey& key, BatchAgreementActions& actions) = 0;
  virtual void Break(const CommunicatorName& name, const absl::Status& why,
                     BatchAgreementActions& actions) = 0;
  // The communicator while it is open; null: it is not, or not any more.
  virtual std::shared_ptr<NcclCommunicator> OpenCommunicator(DeviceId peer,
                                                             const CommunicatorName& name) = 0;
  // Null: there is no such transfer.
  virtual const Tensor* MemoryOf(const TransferKey& key) = 0;
  // REQUIRES: a communicator is, or was, open.
  virtual std::shared_ptr<BatchRunner> runner() = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PUT_HOST_H_
