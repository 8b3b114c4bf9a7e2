// SPDX-License-Identifier: Apache-2.0
// CudaIpcSliceReceiver: assembles staged tensors from slices in the peer's staging ring.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SLICE_RECEIVER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SLICE_RECEIVER_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/unique_fd.h"
#include "transport/cuda_ipc/cuda_ipc_fetches.h"
#include "transport/cuda_ipc/cuda_ipc_mappings.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/cuda_ipc/cuda_ipc_probe_responder.h"
#include "transport/transport.h"

namespace ferry {

// Copies each slice that CudaIpcSliceSender announces from its slot to its place in the tensor, and
// returns the slot (kTaken) when the device has passed the copy, or when it is not needed. The
// loop's thread announces slices; they are copied on the destination device's executor. Owned by
// the receiver, and by slices under way.
class CudaIpcSliceReceiver final : public std::enable_shared_from_this<CudaIpcSliceReceiver> {
 public:
  // Called when the tensor is complete, or cannot be; on any thread, possibly more than once, of
  // which the first call counts.
  using EndCallback = std::function<void(absl::StatusOr<Tensor>)>;

  //   environment.gpus: not null if OnSlice is called.
  CudaIpcSliceReceiver(const TransportEnvironment& environment,
                       std::shared_ptr<CudaIpcMappings> mappings,
                       std::shared_ptr<const CudaIpcProbeResponder> events,
                       std::shared_ptr<const CudaIpcFetches> fetches)
      : environment_(environment),
        mappings_(std::move(mappings)),
        events_(std::move(events)),
        fetches_(std::move(fetches)) {}

  CudaIpcSliceReceiver(const CudaIpcSliceReceiver&) = delete;
  CudaIpcSliceReceiver& operator=(const CudaIpcSliceReceiver&) = delete;

  // Call before the first OnSlice.
  void SetControlChannel(ControlMessageSender channel) { control_channel_ = std::move(channel); }

  // The next slice of `fetch` has been announced; null: its fetch has ended.
  //   fd: of the slot's memory, if it comes with one.
  //   Errors: INVALID_ARGUMENT: the peer violates the protocol.
  absl::Status OnSlice(const std::shared_ptr<CudaIpcFetch>& fetch, const CudaIpcSlice& slice,
                       UniqueFd fd, EndCallback end);

 private:
  // On the destination device's executor.
  //   is_ready: the slice's event has completed.
  void Copy(const std::shared_ptr<CudaIpcFetch>& fetch, const CudaIpcSlice& slice,
            const cuda::ImportedMemory& memory, const EndCallback& end, bool is_ready);
  // Returns the fetch's tensor if this was the last slice, else an invalid one.
  //   Errors: UNAVAILABLE: to be called again when the event of `to_query` has completed; null:
  //   later.
  absl::StatusOr<Tensor> TryCopy(CudaIpcFetch& fetch, const CudaIpcSlice& slice,
                                 const cuda::ImportedMemory& memory, bool& is_ready,
                                 std::shared_ptr<cuda::ImportedEvents>& to_query);
  void ReturnSlot(const CudaIpcSlice& slice);

  const TransportEnvironment environment_;
  const std::shared_ptr<CudaIpcMappings> mappings_;
  const std::shared_ptr<const CudaIpcProbeResponder> events_;
  const std::shared_ptr<const CudaIpcFetches> fetches_;
  ControlMessageSender control_channel_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_SLICE_RECEIVER_H_
