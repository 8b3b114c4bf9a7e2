// SPDX-License-Identifier: Apache-2.0
// Gpus: the GPUs of this process, with memory, streams, executors and copies for tensors.
#ifndef FERRY_GPU_GPUS_H_
#define FERRY_GPU_GPUS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/thread.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_executor.h"
#include "gpu/cuda/export_registry.h"
#include "gpu/cuda/gpu_arena.h"
#include "gpu/cuda/host_stager.h"
#include "gpu/cuda/peer_access.h"
#include "gpu/cuda/pinned_pool.h"
#include "gpu/cuda/staging_ring.h"
#include "gpu/cuda/sync_gate.h"
#include "gpu/cuda/wait_streams.h"
#include "gpu/gpu_compute.h"
#include "gpu/nccl_arbiter.h"
#include "tensor/copy.h"
#include "tensor/tensor.h"

namespace ferry {

// Memory that is reserved (GpuArenaOptions::reserve_bytes, PinnedPoolOptions::reserve_bytes,
// StagingRingOptions::is_reserved) is allocated when a device is opened; if that fails, so does
// opening the device.
struct GpusOptions {
  // Per device.
  cuda::GpuArenaOptions arena;
  // Per process: pinned memory for copies to and from pageable host memory.
  cuda::PinnedPoolOptions pinned;
  // Per device: staging memory for memory that other processes cannot map.
  cuda::StagingRingOptions staging;
  // Foreign memory (not of Ferry's arenas) below this size is staged through the ring even if it
  // could be mapped, since its mapping may be opened and closed for every tensor. SIZE_MAX: always,
  // so that a sender's memory is released once it is copied.
  size_t ipc_min_bytes = size_t{1} << 20;
  // Limit on peers' memory that each device keeps mapped, in bytes; 0: none is mapped, and peers'
  // memory is staged through host memory.
  size_t ipc_cache_bytes = size_t{64} << 30;
  // How long peers' foreign memory that may stay open (see RegisterMemory) stays mapped without
  // being used. Zero: it is closed behind each tensor.
  absl::Duration ipc_idle_timeout = absl::Seconds(10);
  // Whether a stream waits on the device for a tensor that is not complete yet. If not, the
  // executor queries its event, and enqueues what needs the tensor when it has completed, which it
  // notices within an eighth of the time that it took, and 1 ms. Streams of a context share
  // hardware queues (8, or CUDA_DEVICE_MAX_CONNECTIONS), so a stream that waits delays later work
  // of other streams, that of the program and its NCCL too. It deadlocks if the tensor depends on
  // that work, and a wait for an event of a process that has died never ends.
  bool waits_on_device = false;
  // Time after which opening a device that failed, for example for lack of memory, is retried by
  // the next caller; and enabling peer access, if NCCL work was in flight.
  absl::Duration retry_open = absl::Seconds(5);
};

// A GPU in use. Constant after construction; its parts are thread-safe.
struct Gpu {
  std::shared_ptr<cuda::CudaDevice> device;
  std::shared_ptr<cuda::EventPool> events;
  std::shared_ptr<cuda::GpuArena> arena;
  // Stream for copies, between devices and processes, of data that is ready: nothing on it waits
  // for a kernel.
  std::unique_ptr<cuda::CudaStream> copies;
  // Streams for copies that wait for an event; used only with GpusOptions::waits_on_device.
  std::unique_ptr<cuda::WaitStreams> waits;
  std::unique_ptr<cuda::HostStager> stager;
  // Destroyed first, after work in flight has completed. `side`: opens and closes peers' memory,
  // and whatever else may synchronize the device. `nccl`: makes all NCCL calls; separate from the
  // others, since those may wait for NCCL work whose completion this one must notice.
  std::unique_ptr<cuda::DeviceExecutor> executor;
  std::unique_ptr<cuda::DeviceExecutor> side;
  std::unique_ptr<cuda::DeviceExecutor> nccl;
  // Receivers may return slots after the executor has stopped.
  std::shared_ptr<cuda::StagingRing> ring;
  // For the nodes of graphs.
  std::unique_ptr<GpuCompute> compute;
};

// The destination of a tensor.
struct MoveRequest {
  Tensor tensor;
  TensorLocation to;
  // Destination of the elements, of the same type and size; not valid: new memory.
  Tensor destination;
  absl::Time deadline = absl::InfiniteFuture();  // by SteadyClock
  std::string what;                              // "step 3 key x", for messages
};

// The GPUs of a process; shared by all code that moves tensors. A device's context, memory and
// threads are created on first use, which takes hundreds of milliseconds, on a separate thread
// ("ferry-gpu-open"). Thread-safe.
class Gpus final {
 public:
  using UseCallback = absl::AnyInvocable<void(absl::StatusOr<Gpu*>) &&>;
  // Creating a context takes hundreds of milliseconds, and seconds if the driver must wake its GPU.
  static constexpr absl::Duration kOpenTimeout = absl::Minutes(2);

  using MoveCallback = absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&>;
  using HostAllocator = std::function<absl::StatusOr<std::shared_ptr<Buffer>>(size_t bytes)>;

  //   host: allocates memory for tensors that leave a GPU.
  //   copier: may be null; outlives this object.
  //   kernel_image: compiled kernels, as for cuModuleLoadData; empty: none. Must stay valid.
  //   Errors: INTERNAL if the driver cannot enumerate its devices. One that answers with an error
  //   is logged, and only its own use fails.
  static absl::StatusOr<std::unique_ptr<Gpus>> Create(
      std::shared_ptr<const cuda::CudaApi> api, HostAllocator host, CopyPool* copier,
      GpusOptions options, cuda::CompiledKernels kernel_image = cuda::EmbeddedKernels());
  // Blocks until work in flight on the devices has completed.
  ~Gpus();

  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  int count() const { return static_cast<int>(uuids_.size()); }
  // By ordinal, as nvidia-smi writes them; empty: that GPU answered with an error.
  const std::vector<std::string>& uuids() const { return uuids_; }
  const cuda::PeerMatrix& peers() const { return peers_; }
  // One per process; several Gpus share it.
  const std::shared_ptr<cuda::SyncGate>& gate() const { return arbiters_->gate; }
  const GpusOptions& options() const { return options_; }
  // One per GPU; several Gpus share it. REQUIRES: 0 <= ordinal < count().
  std::shared_ptr<NcclArbiter> nccl_arbiter(int ordinal) const { return arbiters_->Get(ordinal); }

  // Returns the device, and opens it on first use: blocks.
  //   Errors: INVALID_ARGUMENT for an unknown device; DEADLINE_EXCEEDED after two minutes; as
  //   CudaDevice::Open, repeated by every later call within retry_open.
  absl::StatusOr<Gpu*> Get(int ordinal) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for callers that must not block: `use` may run inline or on another thread.
  void Use(int ordinal, UseCallback use) ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks until nothing runs or waits on any device, or until `deadline`.
  void WaitIdle(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until work in flight has completed; afterwards nothing is opened, runs or calls back,
  // and all requests fail. Users of this object are destroyed between Stop and the destructor.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Lets peers keep the tensor's allocation mapped between transfers, while the result exists;
  // transfers of other tensors in the same allocation profit too. The tensor is kept until the last
  // peer has closed the allocation. Memory of arenas needs none. May block, as Get.
  //   Errors: INVALID_ARGUMENT the tensor is not in a GPU's memory; FAILED_PRECONDITION with the
  //   reason if other processes cannot map it; as Get.
  absl::StatusOr<std::unique_ptr<cuda::ExportRegistration>> RegisterMemory(const Tensor& tensor);
  const std::shared_ptr<cuda::ExportRegistry>& exports() const { return exports_; }

  // Returns a tensor with uninitialized elements, in memory that other processes of this machine
  // can map. May block, as Get.
  //   Errors: as Get and GpuArena::Allocate; INVALID_ARGUMENT for a type that is not of fixed size.
  absl::StatusOr<Tensor> Allocate(int ordinal, DataType dtype, const Shape& shape);

  // Moves the elements of request.tensor into memory of request.to, between any GPUs and the host.
  // A result in GPU memory may be returned before its bytes are complete, with their event
  // (cuda::ReadyOf); in host memory they are complete. Never blocks; `done` runs once, inline or on
  // a thread of a device. A tensor that is already there is passed through.
  //   Errors, through `done`: INVALID_ARGUMENT for a destination of another type, size or location,
  //   or elements that are not of fixed size; RESOURCE_EXHAUSTED; DEADLINE_EXCEEDED; INTERNAL.
  //   After an error the destination is not written any more once the devices have completed what
  //   was enqueued.
  void Move(MoveRequest request, MoveCallback done);
  // Blocking variant: not on a thread of a device. REQUIRES: request.deadline is set.
  absl::StatusOr<Tensor> MoveAndWait(MoveRequest request);

 private:
  Gpus(std::shared_ptr<const cuda::CudaApi> api, HostAllocator host, CopyPool* copier,
       GpusOptions options, cuda::CompiledKernels kernel_image);

  absl::StatusOr<std::unique_ptr<Gpu>> Open(int ordinal);
  void RunOpener();
  void ToDevice(Gpu& gpu, MoveRequest request, MoveCallback done);
  void ToHost(Gpu& gpu, MoveRequest request, MoveCallback done);
  void Across(Gpu& from, Gpu& to, MoveRequest request, MoveCallback done);
  // On the executor of `from`.
  absl::StatusOr<Tensor> CopyAcross(Gpu& from, Gpu& to, const MoveRequest& request);
  absl::StatusOr<Tensor> DestinationIn(Gpu& gpu, const MoveRequest& request);

  // Constant after Create.
  const std::shared_ptr<const cuda::CudaApi> api_;
  const HostAllocator host_;
  CopyPool* const copier_;
  const GpusOptions options_;
  std::vector<std::string> uuids_;
  cuda::PeerMatrix peers_;
  const std::shared_ptr<NcclArbiters> arbiters_ = NcclArbiters::OfProcess();
  std::unique_ptr<cuda::PeerAccess> peer_access_;
  const std::shared_ptr<cuda::ExportRegistry> exports_ = std::make_shared<cuda::ExportRegistry>();

  struct Slot {
    bool is_opening = false;
    absl::Status failed;
    absl::Time retry_at = absl::InfinitePast();
    std::unique_ptr<Gpu> gpu;
    std::vector<UseCallback> waiting;
  };

  absl::Mutex mu_;
  bool is_stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::vector<int> to_open_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<cuda::PinnedPool> pinned_ ABSL_GUARDED_BY(mu_);
  // Declared last: it uses the other members. Null until first needed.
  std::unique_ptr<Thread> opener_ ABSL_GUARDED_BY(mu_);

  // Constant after construction.
  const cuda::CompiledKernels kernel_image_;
};

// Returns the GPU's free memory plus the memory of Ferry's own arena. 0: unknown.
uint64_t FreeBytesBesideArena(const Gpu& gpu);

}  // namespace ferry

#endif  // FERRY_GPU_GPUS_H_
