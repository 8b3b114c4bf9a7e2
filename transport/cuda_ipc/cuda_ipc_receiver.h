// SPDX-License-Identifier: Apache-2.0
// CudaIpcReceiver: fetches tensors from the GPU memory of one other process on this machine.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_RECEIVER_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_RECEIVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/interprocess_events.h"
#include "gpu/cuda/ipc_import_cache.h"
#include "gpu/gpus.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/transport.h"

namespace ferry {

// How views reach this process's GPUs when they are released, possibly after everything else is
// gone.
struct GpuLink {
  absl::Mutex mu;
  Gpus* gpus ABSL_GUARDED_BY(mu) = nullptr;
};

// A tensor on the same GPU becomes a view of the producer's memory; one on another GPU, or for a
// destination, is copied by this process's copy engine; a staged one is assembled from slices. Each
// is delivered with the event after which it may be read, and before that has completed: no thread
// waits for a device. CUDA is called only on the destination devices' executors. Thread-safe.
class CudaIpcReceiver final : public TransportReceiver,
                              public std::enable_shared_from_this<CudaIpcReceiver> {
 public:
  // The import cache of a device in use.
  using CacheOf = std::function<cuda::IpcImportCache&(Gpu& gpu)>;
  // Closes all of the peer's memory, on all devices.
  using ClosePeer = std::function<void()>;

  // environment.gpus is not null. The callbacks are valid while link->gpus is not null.
  CudaIpcReceiver(TransportEnvironment environment, Endpoint peer, CacheOf cache_of,
                  ClosePeer close_peer, std::shared_ptr<GpuLink> link, ReleaseCallback release);
  ~CudaIpcReceiver() override;

  void SetControlChannel(ControlMessageSender channel) override {
    control_channel_ = std::move(channel);
  }
  // A probe without its descriptor is refused, not an error.
  absl::Status OnControlMessage(absl::string_view body, absl::Span<UniqueFd> descriptors) override;
  void Fetch(uint64_t id, const TensorHeader& header, absl::string_view body,
             absl::Span<UniqueFd> descriptors, const Tensor& destination,
             FetchCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Discard(uint64_t id, const TensorHeader& header, absl::string_view body,
               absl::Span<UniqueFd> descriptors) override;
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  absl::string_view PathOf(const TensorHeader& header, absl::string_view body,
                           const Tensor& destination) const override;

  // An import cache has closed this memory of the peer's.
  void OnClosed(uint64_t buffer_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Human-readable: the path of the last tensor fetched between the pair, and why. Empty: none yet.
  std::string LastOf(const GpuPair& pair) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The peer's memory that a tensor uses while it may be read here.
  struct Held {
    std::vector<cuda::ImportedMemory> memory;
    // Memory outside the peer's arenas: its owner may free it as soon as it is released, so it must
    // be closed by then.
    std::vector<uint64_t> foreign;
  };
  // A tensor being fetched. Fields not guarded by the lock are used by one thread at a time.
  struct Job {
    uint64_t id = 0;
    TensorHeader header;
    CudaIpcDescriptor descriptor;
    std::vector<UniqueFd> descriptors;
    Tensor destination;
    FetchCallback done;
    Gpu* gpu = nullptr;
    // The opened pieces, in the order of the transfer descriptor's `pieces`.
    Held held;
    size_t next_descriptor = 0;
    // Target of a copy: the destination, or memory of the arena.
    Tensor into;
    // Deadline for device memory that is full now.
    absl::Time give_up = absl::InfiniteFuture();
    // Bytes of a staged tensor announced (loop thread only), and copied.
    size_t announced = 0;
    size_t copied = 0;
    // Guarded by the receiver's lock: the thread that takes `done` ends the job.
    bool is_over = false;
  };
  using JobPtr = std::shared_ptr<Job>;
  using OpenCallback = std::function<void(absl::StatusOr<cuda::ImportedMemory>)>;

  absl::Status OnProbe(absl::string_view body, absl::Span<UniqueFd> descriptors);
  void AnswerProbe(Gpu& gpu, const CudaIpcProbe& probe, const cuda::ImportedMemory& memory);
  void Reply(const CudaIpcProbe& probe, const absl::Status& status, std::string why_no_events = "");
  absl::Status OnSegment(absl::string_view body, absl::Span<UniqueFd> descriptors);
  absl::Status OnSlice(absl::string_view body, absl::Span<UniqueFd> descriptors)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFailed(absl::string_view body) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a piece of the peer's memory; `done` runs inline or on the side executor. A segment that
  // should be open and is not, because opening it failed when its descriptor came, is requested
  // once more.
  void OpenPiece(Gpu& gpu, const GpuPair& pair, const CudaIpcPiece& piece, UniqueFd fd,
                 OpenCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  void AskForSegment(const GpuPair& pair, uint64_t buffer_id, OpenCallback done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndAsking(const GpuPair& pair, uint64_t buffer_id,
                 const absl::StatusOr<cuda::ImportedMemory>& memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Opens the pieces one after the other, then delivers.
  void OpenNext(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mu_);

  // The following run on the destination device's executor.
  void Deliver(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Tensor> View(Job& job, std::shared_ptr<const cuda::ReadyEvent> ready);
  // `to_wait_for`: the transfer descriptor's events, waited for before the copy; null: it is ready.
  absl::StatusOr<Tensor> Copy(Job& job, cuda::Stream stream, cuda::ImportedEvents* to_wait_for)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool IsOver(const Job& job) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<cuda::ImportedEvents>> EventsOf(const GpuPair& pair)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Allocates the target of a copy. UNAVAILABLE: memory is full now, retry.
  absl::Status MakeRoom(Job& job);
  // Calls `what` on the job's executor after a short delay.
  void Later(const JobPtr& job, std::function<void()> what);
  void CopySlice(const JobPtr& job, const CudaIpcSlice& slice, const cuda::ImportedMemory& memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the job's tensor if this was the last slice.
  absl::StatusOr<Tensor> TryCopySlice(const JobPtr& job, const CudaIpcSlice& slice,
                                      const cuda::ImportedMemory& memory) ABSL_LOCKS_EXCLUDED(mu_);
  void SayTaken(const CudaIpcSlice& slice);
  void Note(const Job& job, absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);

  void End(const JobPtr& job, absl::StatusOr<Tensor> tensor) ABSL_LOCKS_EXCLUDED(mu_);
  // The memory is no longer read here: closes what must be closed, then notifies the producer.
  void LetGo(Gpu& gpu, Held held, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // A tensor's piece of foreign memory could not be opened: it is not one of its users after all.
  void ForgetUser(Gpu& gpu, uint64_t buffer_id) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  const Endpoint peer_;
  const CacheOf cache_of_;
  const ClosePeer close_peer_;
  const std::shared_ptr<GpuLink> link_;
  const ReleaseCallback release_;
  ControlMessageSender control_channel_;

  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, JobPtr> jobs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, std::shared_ptr<cuda::ImportedEvents>> events_ ABSL_GUARDED_BY(mu_);
  // Pairs whose memory can be opened, with the reason why their events cannot.
  absl::flat_hash_map<GpuPair, std::string> without_events_ ABSL_GUARDED_BY(mu_);
  // By buffer id, for memory outside the peer's arenas: the number of tensors that use it or open
  // it, and the functions to call when its mappings are closed, in order of closing.
  absl::flat_hash_map<uint64_t, int> foreign_users_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::deque<std::function<void()>>> closing_ ABSL_GUARDED_BY(mu_);
  // Segments requested once more.
  absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::vector<OpenCallback>> asked_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, std::string> last_ ABSL_GUARDED_BY(mu_);
  // Segments of the peer's arenas, whose descriptors are sent once: open as long as this object.
  std::vector<cuda::ImportedMemory> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_RECEIVER_H_
