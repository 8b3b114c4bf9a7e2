// SPDX-License-Identifier: Apache-2.0
// Gpus: the GPUs of this process as tensors need them: memory, streams, executors, copies.
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
#include "gpu/cuda/gpu_arena.h"
#include "gpu/cuda/host_stager.h"
#include "gpu/cuda/pinned_pool.h"
#include "gpu/cuda/staging_ring.h"
#include "gpu/cuda/sync_gate.h"
#include "gpu/cuda/wait_streams.h"
#include "gpu/gpu_compute.h"
#include "gpu/nccl_arbiter.h"
#include "tensor/copy.h"
#include "tensor/tensor.h"

namespace ferry {

struct GpusOptions {
  // Of each device.
  cuda::GpuArenaOptions arena;
  // Of the process: what copies to and from ordinary host memory go through.
  cuda::PinnedPoolOptions pinned;
  // Of each device: what memory that no other process can map goes through.
  cuda::StagingRingOptions staging;
  // Foreign memory (not of Ferry's arenas) goes through the ring below this size, also where it
  // could be mapped: its mapping would be opened and closed for every tensor. SIZE_MAX: always, so
  // that a sender has its memory back when it is copied.
  size_t stage_below_bytes = size_t{1} << 20;
  // Memory of other processes that each device keeps mapped; 0: none is mapped, and what they have
  // is staged through the host's memory.
  size_t import_cap_bytes = size_t{64} << 30;
  // A device that could not be opened, as one whose memory others had taken, is tried again by who
  // asks for it after so long.
  absl::Duration retry_open = absl::Seconds(5);
};

// One GPU that is in use. Constant once made; its parts are thread-safe.
struct Gpu {
  std::shared_ptr<cuda::CudaDevice> device;
  std::shared_ptr<cuda::EventPool> events;
  std::shared_ptr<cuda::GpuArena> arena;
  // Copies between devices and processes, of what is there already: nothing on it waits for a
  // kernel of anybody's.
  std::unique_ptr<cuda::CudaStream> copies;
  // For those that are behind something.
  std::unique_ptr<cuda::WaitStreams> waits;
  std::unique_ptr<cuda::HostStager> stager;
  // These go first, and wait for what is under way. `side`: opens and closes memory of others, and
  // whatever else may wait for the device. `nccl`: makes every call of NCCL's; apart from the
  // others, since those may wait for NCCL's work to end, which it is to notice.
  std::unique_ptr<cuda::DeviceExecutor> executor;
  std::unique_ptr<cuda::DeviceExecutor> side;
  std::unique_ptr<cuda::DeviceExecutor> nccl;
  // What is back from its receivers may come when the executor has stopped.
  std::shared_ptr<cuda::StagingRing> ring;
  // Of the nodes of graphs.
  std::unique_ptr<GpuCompute> compute;
};

// What a tensor is to become.
struct MoveRequest {
  Tensor tensor;
  TensorLocation to;
  // Where the elements are wanted there, of the same type and size; not valid: new memory.
  Tensor destination;
  absl::Time deadline = absl::InfiniteFuture();  // by SteadyClock
  std::string what;                              // "step 3 key x", for messages
};

// Of a process; shared by whoever moves tensors. A device's context, memory and threads come into
// being when it is first used, which takes hundreds of milliseconds, on a thread of their own
// ("ferry-gpu-open"). Thread-safe.
class Gpus final {
 public:
  using UseCallback = absl::AnyInvocable<void(absl::StatusOr<Gpu*>) &&>;
  // A context takes hundreds of milliseconds, and seconds where the driver must wake its GPU.
  static constexpr absl::Duration kOpenTimeout = absl::Minutes(2);

  using MoveCallback = absl::AnyInvocable<void(absl::StatusOr<Tensor>) &&>;
  using HostAllocator = std::function<absl::StatusOr<std::shared_ptr<Buffer>>(size_t bytes)>;

  //   host: where tensors that leave a GPU go.
  //   copier: may be null; outlives this.
  //   kernel_image: of kernels, as cuModuleLoadData takes it; empty: there are none. Stays valid.
  //   Errors: INTERNAL if the driver cannot say what it has.
  static absl::StatusOr<std::unique_ptr<Gpus>> Create(
      std::shared_ptr<const cuda::CudaApi> api, HostAllocator host, CopyPool* copier,
      GpusOptions options, cuda::CompiledKernels kernel_image = cuda::EmbeddedKernels());
  // Waits for what is under way on the devices.
  ~Gpus();

  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  int count() const { return static_cast<int>(uuids_.size()); }
  // By ordinal, as nvidia-smi writes them.
  const std::vector<std::string>& uuids() const { return uuids_; }
  const cuda::PeerMatrix& peers() const { return peers_; }
  // Of the process: several of these have one.
  const std::shared_ptr<cuda::SyncGate>& gate() const { return order_->gate; }
  const GpusOptions& options() const { return options_; }
  // Of each GPU; several of these have the same. REQUIRES: 0 <= ordinal < count().
  std::shared_ptr<NcclArbiter> turns(int ordinal) const { return order_->Turns(ordinal); }

  // The device, opened now if it was not: blocks.
  //   Errors: INVALID_ARGUMENT for a device that there is not; DEADLINE_EXCEEDED after two minutes;
  //   what CudaDevice::Open says, again at every later call within retry_open.
  absl::StatusOr<Gpu*> Get(int ordinal) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for callers that must not block: `use` may run inside, or on another thread.
  void Use(int ordinal, UseCallback use) ABSL_LOCKS_EXCLUDED(mu_);

  // Until nothing runs or waits on any device, or the deadline is over.
  void WaitIdle(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for what is under way; from then on nothing is opened, runs or calls back, and whatever
  // is asked for fails. What uses this goes between here and the destructor.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Elements undefined, in memory that other processes of this machine can map. May block, as Get.
  //   Errors: as Get and GpuArena::Allocate; INVALID_ARGUMENT for a type that is not of fixed size.
  absl::StatusOr<Tensor> Allocate(int ordinal, DataType dtype, const Shape& shape);

  // Puts the elements of request.tensor into memory of request.to: from and to any GPU and the
  // host. What arrives in a GPU may come before its bytes, with their event (cuda::ReadyOf); in
  // host memory they are there. Never blocks; `done` runs once, inside or on a thread of a device.
  // A tensor that is there already is passed on as it is.
  //   Errors, through `done`: INVALID_ARGUMENT for a destination of another type, size or place, or
  //   elements that are not of fixed size; RESOURCE_EXHAUSTED; DEADLINE_EXCEEDED; INTERNAL. After
  //   an error nothing more is written to the destination once the devices have ended what was
  //   enqueued.
  void Move(MoveRequest request, MoveCallback done);
  // The same, waited for: not on a thread of a device. REQUIRES: request.deadline is set.
  absl::StatusOr<Tensor> MoveAndWait(MoveRequest request);

 private:
  Gpus(std::shared_ptr<const cuda::CudaApi> api, HostAllocator host, CopyPool* copier,
       GpusOptions options, cuda::CompiledKernels kernel_image);

  absl::StatusOr<std::unique_ptr<Gpu>> Open(int ordinal);
  void RunOpener();
  void ToDevice(Gpu& gpu, MoveRequest request, MoveCallback done);
  void ToHost(Gpu& gpu, MoveRequest request, MoveCallback done);
  void Across(Gpu& from, Gpu& to, MoveRequest request, MoveCallback done);
  absl::StatusOr<Tensor> DestinationIn(Gpu& gpu, const MoveRequest& request);

  // Constant after Create.
  const std::shared_ptr<const cuda::CudaApi> api_;
  const HostAllocator host_;
  CopyPool* const copier_;
  const GpusOptions options_;
  std::vector<std::string> uuids_;
  cuda::PeerMatrix peers_;
  const std::shared_ptr<NcclOrder> order_ = NcclOrder::OfProcess();

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
  // Last: it uses the rest. Null until somebody needs it.
  std::unique_ptr<Thread> opener_ ABSL_GUARDED_BY(mu_);

  // Constant after construction.
  const cuda::CompiledKernels kernel_image_;
};

// What the GPU has free, if Ferry's own arena had nothing of it. 0: not known.
uint64_t FreeBytesBesideArena(const Gpu& gpu);

}  // namespace ferry

#endif  // FERRY_GPU_GPUS_H_
