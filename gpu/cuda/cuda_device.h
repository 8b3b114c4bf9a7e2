// SPDX-License-Identifier: Apache-2.0
// CudaDevice: one GPU of this process with its primary context; streams; access between GPUs.
#ifndef FERRY_GPU_CUDA_CUDA_DEVICE_H_
#define FERRY_GPU_CUDA_CUDA_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_api.h"

namespace ferry::cuda {

// Device properties that Ferry needs in addition to the topology; queried once.
struct DeviceTraits {
  bool has_virtual_memory = false;   // cuMemCreate and related calls
  bool exports_posix_fd = false;     // of such memory
  bool registers_with_nics = false;  // such memory that was created for it (GPUDirect RDMA)
  bool has_pools = false;
  bool pools_export_posix_fd = false;
  bool has_ipc_events = false;
  int compute_mode = 0;  // kComputeMode*
  // Processes share the GPU by MPS; else the GPU switches between their contexts.
  bool uses_mps = false;
};

// Creates no context. Properties that the driver does not report are false, or 0.
DeviceTraits ReadTraits(const CudaApi& api, Device device);

// Holds the device's primary context, the one that PyTorch, JAX and CuPy use in the same process,
// so that memory, streams and events are shared with them. Never creates another. Shared by the
// objects on it, which may outlive the node that opened it. Thread-safe.
class CudaDevice final {
 public:
  //   api: outlives the device.
  //   Errors: UNIMPLEMENTED if the driver lacks functions that every use needs; FAILED_PRECONDITION
  //   if the device's compute mode prohibits contexts; INTERNAL when a call fails. If the process
  //   has no primary context yet, creating it takes hundreds of milliseconds and of MiB.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Open(std::shared_ptr<const CudaApi> api,
                                                          int ordinal);
  ~CudaDevice();

  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaApi& api() const { return *api_; }
  const CudaTable& table() const { return api_->table(); }
  int ordinal() const { return ordinal_; }
  Device handle() const { return handle_; }
  const Uuid& uuid() const { return uuid_; }
  Context context() const { return context_; }
  const DeviceTraits& traits() const { return traits_; }
  std::string name() const;  // "gpu:0"

  // As CudaApi::Check, with the device's name.
  absl::Status Check(Result result, const char* call) const;

 private:
  CudaDevice(std::shared_ptr<const CudaApi> api, int ordinal);

  const std::shared_ptr<const CudaApi> api_;
  const int ordinal_;
  Device handle_ = 0;
  Uuid uuid_ = {};
  Context context_ = nullptr;
  DeviceTraits traits_;
};

// Makes the device's context current on this thread for the duration of a scope, and then restores
// the previous one. Every CUDA call of Ferry is inside such a scope; scopes nest.
class ScopedCurrent final {
 public:
  explicit ScopedCurrent(const CudaDevice& device);
  ~ScopedCurrent();

  ScopedCurrent(const ScopedCurrent&) = delete;
  ScopedCurrent& operator=(const ScopedCurrent&) = delete;

  // INTERNAL if the context could not be made current: the device has been reset. The calls inside
  // the scope then fail too, with INVALID_CONTEXT, so this only serves better messages.
  const absl::Status& status() const { return status_; }

 private:
  const CudaTable& table_;
  bool is_pushed_ = false;
  absl::Status status_;
};

// A stream of Ferry's, non-blocking with respect to the legacy default stream. Owns it; enqueued
// work still runs after its destruction. As thread-safe as CUDA's streams.
class CudaStream final {
 public:
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(std::shared_ptr<CudaDevice> device);
  ~CudaStream();

  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Stream get() const { return stream_; }
  CudaDevice& device() const { return *device_; }

 private:
  CudaStream(std::shared_ptr<CudaDevice> device, Stream stream);

  const std::shared_ptr<CudaDevice> device_;
  const Stream stream_;
};

// Peer access between the devices of this process, over NVLink or PCIe. A value.
class PeerMatrix final {
 public:
  // Queries the driver for every pair; needs no context. Where it answers with an error, the pair
  // has no access.
  static absl::StatusOr<PeerMatrix> Query(const CudaApi& api);

  int device_count() const { return count_; }
  // Returns whether `from` can access memory of `to`. A device can access its own.
  bool CanAccess(int from, int to) const {
    return can_[static_cast<size_t>(from) * static_cast<size_t>(count_) + static_cast<size_t>(to)];
  }

 private:
  int count_ = 0;
  std::vector<bool> can_;
};

// Lets kernels and copies of `from` access memory of `to` that cuMemAlloc allocated; idempotent for
// each pair of the process.
//   Errors: FAILED_PRECONDITION if the pair has no peer access; INTERNAL.
absl::Status EnablePeerAccess(const CudaDevice& from, const CudaDevice& to);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_CUDA_DEVICE_H_
