// SPDX-License-Identifier: Apache-2.0
// Exporting device memory to other processes of this machine.
#ifndef FERRY_GPU_CUDA_IPC_EXPORT_H_
#define FERRY_GPU_CUDA_IPC_EXPORT_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"

#include "base/unique_fd.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/ipc_descriptor.h"

namespace ferry::cuda {

struct ExportedPiece {
  IpcDescriptor descriptor;
  // What the importer needs to open it, besides: of kPosixFd the memory, of kPoolPointer its pool.
  // It keeps the memory from being given back, so it is closed as soon as the peer has it: a second
  // range of an allocation that the peer has opened needs none.
  UniqueFd fd;
};

// Everything a peer needs to open [pointer, pointer + bytes): one piece, or one for each piece of
// physical memory that the range touches, in the order of addresses.
//   device: the memory's.
//   Errors: FAILED_PRECONDITION with the reason if memory of this kind cannot be opened by another
//   process, or is another device's; RESOURCE_EXHAUSTED when there are no descriptors left; as
//   Classify.
// The memory must not be freed before every peer has closed it. Tens of microseconds; thread-safe;
// does not synchronise.
absl::StatusOr<std::vector<ExportedPiece>> ExportMemory(const CudaDevice& device,
                                                        const void* pointer, size_t bytes);

// The same for physical memory whose handle the caller has.
absl::StatusOr<UniqueFd> ExportHandle(const CudaDevice& device, AllocationHandle handle);

// What a call has returned that passes or takes a descriptor: the driver's code for having none is
// the one for everything that the kernel refuses.
//   Errors: RESOURCE_EXHAUSTED if this process has no descriptors left, naming the limit; as
//   CudaDevice::Check.
absl::Status CheckWithDescriptors(const CudaDevice& device, Result result, const char* call);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IPC_EXPORT_H_
