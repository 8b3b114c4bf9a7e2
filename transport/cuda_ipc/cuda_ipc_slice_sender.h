// SPDX-License-Identifier: Apache-2.0
// CudaIpcSliceSender: sends staged tensors to one peer, in slices through the staging ring.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SLICE_SENDER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SLICE_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/interprocess_events.h"
#include "gpu/gpus.h"
#include "tensor/tensor.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/cuda_ipc_prober.h"
#include "transport/cuda_ipc/cuda_ipc_segments.h"
#include "transport/cuda_ipc/deferred_release_queue.h"
#include "transport/transport.h"

namespace ferry {

// Copies a tensor slice by slice into slots of the device's StagingRing, and announces each slot to
// the peer's CudaIpcSliceReceiver. A slot belongs to the peer until it acknowledges the slice
// (kTaken). Tensors take turns. CUDA is called on the source devices' executors. Thread-safe. Owned
// by the sender, and by tensors under way.
class CudaIpcSliceSender final : public std::enable_shared_from_this<CudaIpcSliceSender> {
 public:
  struct Request {
    uint64_t id = 0;
    Tensor tensor;  // ready
    // Human-readable: why it is not mapped.
    std::string why;
    // OK while the peer still wants it; else CANCELLED, or the status given to Abort.
    std::function<absl::Status()> check_wanted;
    // Called when the first slot is there, with the transfer descriptor, or with the error.
    TransportSender::ExposeCallback done;
  };

  CudaIpcSliceSender(std::shared_ptr<CudaIpcProber> prober,
                     std::shared_ptr<CudaIpcSegments> segments)
      : prober_(std::move(prober)), segments_(std::move(segments)) {}

  CudaIpcSliceSender(const CudaIpcSliceSender&) = delete;
  CudaIpcSliceSender& operator=(const CudaIpcSliceSender&) = delete;

  // Call before the first Send.
  void SetControlChannel(ControlMessageSender channel) { control_channel_ = std::move(channel); }

  // On the source device's executor.
  void Send(Gpu& gpu, const GpuPair& pair, Request request) ABSL_LOCKS_EXCLUDED(mu_);
  // The peer no longer reads the slice.
  //   Errors: INVALID_ARGUMENT: it was not announced, or was acknowledged before.
  absl::Status OnTaken(const CudaIpcTaken& taken) ABSL_LOCKS_EXCLUDED(mu_);
  // The control channel has ended: `grace` returns the slots when the peer cannot be reading them.
  void Abort(DeferredReleaseQueue& grace) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A tensor being sent. On the source device's executor. `request.done` is null once the transfer
  // descriptor has gone.
  struct Transfer {
    Gpu* gpu = nullptr;
    GpuPair pair;
    Request request;
    size_t sent = 0;
  };
  using TransferPtr = std::shared_ptr<Transfer>;
  // A slice that the peer has not acknowledged yet.
  struct Slice {
    cuda::StagingRing::Slot slot;
    std::shared_ptr<cuda::StagingRing> ring;
    std::shared_ptr<const cuda::ReadyEvent> copied;
    GpuPair pair;
    size_t bytes = 0;
    cuda::EventTicket ready;
  };
  // By transfer and offset.
  using Slices = std::map<std::pair<uint64_t, uint64_t>, Slice>;

  void NextSlice(const TransferPtr& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  void FillSlot(const TransferPtr& transfer, cuda::StagingRing::Slot slot) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CopyIntoSlot(const Transfer& transfer, Slice& slice);
  // Then continues with the next slice.
  void Announce(const TransferPtr& transfer, Slice slice) ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(Transfer& transfer, const absl::Status& why);

  const std::shared_ptr<CudaIpcProber> prober_;
  const std::shared_ptr<CudaIpcSegments> segments_;
  ControlMessageSender control_channel_;

  absl::Mutex mu_;
  bool is_aborted_ ABSL_GUARDED_BY(mu_) = false;
  Slices slices_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SLICE_SENDER_H_
