// SPDX-License-Identifier: Apache-2.0
// PutMemory: the pool of one GPU's one-sided transfers, and its windows.
#ifndef FERRY_TRANSPORT_NCCL_PUT_MEMORY_H_
#define FERRY_TRANSPORT_NCCL_PUT_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "gpu/communicator/communicator.h"
#include "gpu/cuda/device_buffer.h"
#include "gpu/gpus.h"
#include "tensor/tensor.h"
#include "transport/nccl/batch_runner.h"
#include "transport/nccl/put_action.h"

namespace ferry {

// A block of the GPU's arena: memory of cuMemCreate in one piece, as ncclPutSignal requires at both
// ends. PutEndpoint says which block belongs to which transfer. Shared by the tensors in it.
// Thread-safe.
class PutMemory final : public std::enable_shared_from_this<PutMemory> {
 public:
  // Blocks, and may wait for NCCL's work to end.
  //   Errors: FAILED_PRECONDITION: the driver or the arena has no such memory; as
  //   GpuArena::Allocate.
  static absl::StatusOr<std::shared_ptr<PutMemory>> Create(Gpu& gpu, uint64_t bytes);

  uint64_t bytes() const { return bytes_; }
  void* at(uint64_t offset) const { return static_cast<char*>(buffer_->data()) + offset; }
  const std::shared_ptr<cuda::CudaDevice>& device() const { return device_; }

  // A received tensor's memory. Its block is returned with the last reference, once its uses have
  // completed.
  std::shared_ptr<Buffer> BufferAt(uint64_t offset, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // A block whose last reference is gone.
  struct FreedBlock {
    uint64_t offset = 0;
    // OK: its uses have completed. Otherwise the device's error: that will not be known any more.
    absl::Status status;
  };
  // Those since the last call.
  std::vector<FreedBlock> TakeFreed() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PutMemory(Gpu& gpu, uint64_t bytes, std::shared_ptr<cuda::DeviceBuffer> buffer);

  struct Returned {
    uint64_t offset = 0;
    cuda::DeviceBuffer::Uses uses;
  };

  const std::shared_ptr<cuda::CudaDevice> device_;
  const uint64_t bytes_;
  const std::shared_ptr<cuda::DeviceBuffer> buffer_;
  absl::Mutex mu_;
  std::vector<Returned> returned_ ABSL_GUARDED_BY(mu_);
};

// One communicator's window over it. Null until it is registered, and if NCCL has none for it.
struct PutWindow {
  std::shared_ptr<PutMemory> memory;
  // For the puts and waits of this communicator alone: where a lost signal stops the stream, those
  // of other peers go on.
  std::shared_ptr<cuda::CudaStream> stream;
  nccl::Window window = nullptr;
};

// Registers the window, and sends one signal: the first one-sided operation of a communicator is a
// collective call of the hosts, as the registration is. Both ranks do this at the same place of
// the agreed order. Without one-sided operations the window stays null on both.
std::vector<BatchStep> RegisterSteps(std::shared_ptr<PutWindow> window);
// Copies the tensor into its block, and puts it. Its memory is the tensor's.
RunnableBatch PutBatch(std::shared_ptr<NcclCommunicator> communicator,
                       std::shared_ptr<PutWindow> window, const Tensor& source,
                       const IssuePut& put);
RunnableBatch WaitBatch(std::shared_ptr<NcclCommunicator> communicator,
                        std::shared_ptr<PutWindow> window, const IssueWait& wait);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PUT_MEMORY_H_
