// SPDX-License-Identifier: Apache-2.0
// Exports device memory to other processes of this machine.
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
  // The file descriptor that the importer needs in addition: for kPosixFd the memory's, for
  // kPoolPointer its pool's. It keeps the memory allocated, so it is closed as soon as the peer has
  // it: a second range of an allocation that the peer has opened needs none.
  UniqueFd fd;
};

// Returns what a peer needs to open [pointer, pointer + bytes): one piece, or one for each piece of
// physical memory that the range touches, in the order of addresses.
//   device: the memory's.
//   Errors: FAILED_PRECONDITION with the reason if memory of this kind cannot be opened by another
//   process, or belongs to another device; RESOURCE_EXHAUSTED when there are no file descriptors
//   left; as Classify.
// The memory must not be freed before every peer has closed it. Takes tens of microseconds;
// thread-safe; does not synchronize.
absl::StatusOr<std::vector<ExportedPiece>> ExportMemory(const CudaDevice& device,
                                                        const void* pointer, size_t bytes);

// The same for physical memory, given its handle.
absl::StatusOr<UniqueFd> ExportHandle(const CudaDevice& device, AllocationHandle handle);

// Checks the result of a call that exports or imports a file descriptor: the driver returns the
// same code for a lack of descriptors as for everything that the kernel rejects.
//   Errors: RESOURCE_EXHAUSTED if this process has no descriptors left, naming the limit; as
//   CudaDevice::Check.
absl::Status CheckWithDescriptors(const CudaDevice& device, Result result, const char* call);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IPC_EXPORT_H_
