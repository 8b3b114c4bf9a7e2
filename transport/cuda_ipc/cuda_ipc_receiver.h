// SPDX-License-Identifier: Apache-2.0
// CudaIpcReceiver: takes tensors out of the GPU memory of one other process of this machine.
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
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/transport.h"

namespace ferry {

// How views reach this process's GPUs when they go, which may be after everything else.
struct GpuLink {
  absl::Mutex mu;
  Gpus* gpus ABSL_GUARDED_BY(mu) = nullptr;
};

// A tensor on the same GPU is a view of the producer's memory; one on another GPU, or for a
// destination, is copied by this process's copy engine; one that comes in slices is put together.
// Each comes with the event behind which it may be read, and before that is done: no thread waits
// for a device. CUDA is called on the destination devices' executors only. Thread-safe.
class CudaIpcReceiver final : public TransportReceiver,
                              public std::enable_shared_from_this<CudaIpcReceiver> {
 public:
  // Of the device, which is in use.
  using CacheOf = std::function<cuda::IpcImportCache&(Gpu& gpu)>;
  // Nothing of the peer's is wanted any more, on any device.
  using ClosePeer = std::function<void()>;

  // environment.gpus is not null. The callbacks are good as long as link->gpus is not null.
  CudaIpcReceiver(TransportEnvironment environment, Endpoint peer, CacheOf cache_of,
                  ClosePeer close_peer, std::shared_ptr<GpuLink> link, ReleaseCallback release);
  ~CudaIpcReceiver() override;

  void SetReply(Announce reply) override { reply_ = std::move(reply); }
  // Of a probe: it is refused.
  bool is_fd_optional() const override { return true; }
  absl::Status OnAnnouncement(absl::string_view body, absl::Span<UniqueFd> descriptors) override;
  void Take(uint64_t id, const TensorHeader& header, absl::string_view body,
            absl::Span<UniqueFd> descriptors, const Tensor& destination, TakeCallback done) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(uint64_t id) override ABSL_LOCKS_EXCLUDED(mu_);
  void Drop(uint64_t id, const TensorHeader& header, absl::string_view body,
            absl::Span<UniqueFd> descriptors) override;
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  absl::string_view PathOf(const TensorHeader& header, absl::string_view body,
                           const Tensor& destination) const override;

  // An import cache has closed that memory of the peer's.
  void OnClosed(uint64_t buffer_id) ABSL_LOCKS_EXCLUDED(mu_);
  // What became of the last tensor that went this way, and why; for people. Empty: none has yet.
  std::string LastOf(const GpuPair& pair) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What a tensor needs of the peer's memory while somebody here may read it.
  struct Held {
    std::vector<cuda::ImportedMemory> memory;
    // Of those that are not the peer's arenas': their owner may free them as soon as it is told
    // that they are not used, and they must be closed by then.
    std::vector<uint64_t> foreign;
  };
  // A tensor that is being taken. What is not under the lock is of one thread at a time.
  struct Job {
    uint64_t id = 0;
    TensorHeader header;
    CudaIpcDescriptor ticket;
    std::vector<UniqueFd> descriptors;
    Tensor destination;
    TakeCallback done;
    Gpu* gpu = nullptr;
    // Of transfer descriptor.pieces, as far as they are open.
    Held held;
    size_t next_descriptor = 0;
    // Where a copy of it goes: the destination, or memory of the arena.
    Tensor into;
    // Memory that is full may not be for long.
    absl::Time give_up = absl::InfiniteFuture();
    // Of one that comes in slices: how much was announced, which is the loop's; and copied.
    size_t announced = 0;
    size_t copied = 0;
    // Under the receiver's lock: whoever takes `done` out ends the job.
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

  // Gets at a piece of the peer's memory; `done` runs inside or on the side executor. A segment
  // that should be open and is not, because opening it failed when its descriptor came, is asked
  // for once more.
  void OpenPiece(Gpu& gpu, const GpuPair& pair, const CudaIpcPiece& piece, UniqueFd fd,
                 OpenCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  void AskForSegment(const GpuPair& pair, uint64_t buffer_id, OpenCallback done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndAsking(const GpuPair& pair, uint64_t buffer_id,
                 const absl::StatusOr<cuda::ImportedMemory>& memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Opens the pieces one after the other, then delivers.
  void OpenNext(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mu_);

  // On the destination device's executor, these.
  void Deliver(const JobPtr& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Tensor> View(Job& job, std::shared_ptr<const cuda::ReadyEvent> ready);
  // `to_wait_for`: of the transfer descriptor, before the copy; null: it is ready.
  absl::StatusOr<Tensor> Copy(Job& job, cuda::Stream stream, cuda::ImportedEvents* to_wait_for)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool IsOver(const Job& job) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<cuda::ImportedEvents>> EventsOf(const GpuPair& pair)
      ABSL_LOCKS_EXCLUDED(mu_);
  // For a copy. UNAVAILABLE: not now, but perhaps soon.
  absl::Status MakeRoom(Job& job);
  // Calls `what` on the job's executor after a moment.
  void Later(const JobPtr& job, std::function<void()> what);
  void CopySlice(const JobPtr& job, const CudaIpcSlice& slice, const cuda::ImportedMemory& memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The job's tensor, if that was the last slice.
  absl::StatusOr<Tensor> TryCopySlice(const JobPtr& job, const CudaIpcSlice& slice,
                                      const cuda::ImportedMemory& memory) ABSL_LOCKS_EXCLUDED(mu_);
  void SayTaken(const CudaIpcSlice& slice);
  void Note(const Job& job, absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);

  void End(const JobPtr& job, absl::StatusOr<Tensor> tensor) ABSL_LOCKS_EXCLUDED(mu_);
  // Nobody here reads it any more: closes what has to be, then tells the producer.
  void LetGo(Gpu& gpu, Held held, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  const TransportEnvironment environment_;
  const Endpoint peer_;
  const CacheOf cache_of_;
  const ClosePeer close_peer_;
  const std::shared_ptr<GpuLink> link_;
  const ReleaseCallback release_;
  Announce reply_;

  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, JobPtr> jobs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, std::shared_ptr<cuda::ImportedEvents>> events_ ABSL_GUARDED_BY(mu_);
  // Pairs whose memory can be opened, and why their events cannot.
  absl::flat_hash_map<GpuPair, std::string> without_events_ ABSL_GUARDED_BY(mu_);
  // Of memory that is not of the peer's arenas, by buffer id: how many tensors use it, and what is
  // to be done when a mapping of it is closed, in the order of closing.
  absl::flat_hash_map<uint64_t, int> foreign_users_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::deque<std::function<void()>>> closing_ ABSL_GUARDED_BY(mu_);
  // Segments that were asked for once more.
  absl::flat_hash_map<std::pair<uint16_t, uint64_t>, std::vector<OpenCallback>> asked_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<GpuPair, std::string> last_ ABSL_GUARDED_BY(mu_);
  // Of the peer's arenas, whose descriptors come once: open as long as this.
  std::vector<cuda::ImportedMemory> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_RECEIVER_H_
