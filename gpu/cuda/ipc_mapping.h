// SPDX-License-Identifier: Apache-2.0
// IpcMapping: an allocation of another process, mapped in this one.
#ifndef FERRY_GPU_CUDA_IPC_MAPPING_H_
#define FERRY_GPU_CUDA_IPC_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "base/unique_fd.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/imported_pools.h"
#include "gpu/cuda/ipc_descriptor.h"

namespace ferry::cuda {

// Both opening and closing may synchronize the device: IpcImportCache schedules them.
class IpcMapping final {
 public:
  // Maps the whole allocation of `descriptor`, readable and writable by `device`.
  //   device: the device that will use it; the memory may be on another one that it can access.
  //   fd: as for ExportedPiece.
  //   pools: where the peer's pools are found if they are imported already, of the same device;
  //   null: its pool is imported for this mapping alone.
  //   peer: the peer's incarnation, for `pools`.
  //   Errors: ALREADY_EXISTS if the driver still has a mapping of older memory at the same address
  //   of the same process; FAILED_PRECONDITION if this driver or device cannot import the kind;
  //   INVALID_ARGUMENT without the file descriptor that the kind needs; INTERNAL.
  static absl::StatusOr<std::unique_ptr<IpcMapping>> Open(std::shared_ptr<CudaDevice> device,
                                                          const IpcDescriptor& descriptor,
                                                          UniqueFd fd,
                                                          ImportedPools* pools = nullptr,
                                                          uint64_t peer = 0);
  ~IpcMapping();

  IpcMapping(const IpcMapping&) = delete;
  IpcMapping& operator=(const IpcMapping&) = delete;

  // Address, in this process, of the allocation's first byte.
  DevicePointer base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  IpcMapping(std::shared_ptr<CudaDevice> device, ExportBy export_by, size_t bytes);

  absl::Status OpenLegacy(const IpcDescriptor& descriptor);
  absl::Status OpenPool(const IpcDescriptor& descriptor, const UniqueFd& fd, ImportedPools* pools,
                        uint64_t peer);
  absl::Status OpenVirtual(const IpcDescriptor& descriptor, const UniqueFd& fd);

  const std::shared_ptr<CudaDevice> device_;
  const ExportBy export_by_;
  const size_t bytes_;
  DevicePointer base_ = 0;
  std::shared_ptr<const ImportedPool> pool_;
  bool is_reserved_ = false;
  bool is_mapped_ = false;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_IPC_MAPPING_H_
