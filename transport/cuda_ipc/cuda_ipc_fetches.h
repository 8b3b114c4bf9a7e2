// SPDX-License-Identifier: Apache-2.0
// CudaIpcFetches: the tensors that a receiver is fetching from one peer.
#ifndef FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_FETCHES_H_
#define FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_FETCHES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/unique_fd.h"
#include "gpu/cuda/interprocess_events.h"
#include "gpu/gpus.h"
#include "net/loop.h"
#include "tensor/tensor.h"
#include "transport/cuda_ipc/cuda_ipc_mappings.h"
#include "transport/cuda_ipc/cuda_ipc_messages.h"
#include "transport/transport.h"

namespace ferry {

// One fetch: the transfer descriptor, and what has been done so far. Used by one thread at a time,
// but for the constant fields and as said below. Shared by those who work on it.
struct CudaIpcFetch {
  // Constant once it is in CudaIpcFetches.
  uint64_t id = 0;
  TensorHeader header;
  CudaIpcDescriptor descriptor;

  std::vector<UniqueFd> descriptors;
  size_t next_descriptor = 0;
  // The caller's memory; invalid: the tensor is a view, or is copied into memory of the arena.
  Tensor destination;
  Gpu* gpu = nullptr;
  // The event of the transfer descriptor has completed.
  bool is_ready = false;
  // The opened pieces, in the order of the transfer descriptor's `pieces`.
  CudaIpcMappings::Held held;
  // Target of a copy, once there is one: the destination, or memory of the arena.
  Tensor into;
  // Deadline for device memory that is full now.
  absl::Time give_up = absl::InfiniteFuture();
  // Bytes of a staged tensor announced (loop thread only), and copied.
  size_t announced = 0;
  size_t copied = 0;
  // Its memory could not be opened, and it is staged instead of what the transfer descriptor says,
  // for this reason. Set by CudaIpcFetches::Restage.
  std::string why_restaged;
  std::atomic<bool> is_restaged{false};
  // Held while device work is enqueued for it. Before the lock of CudaIpcFetches.
  mutable absl::Mutex enqueuing;

  bool is_staged() const { return descriptor.is_staged() || is_restaged; }

  // Sets `into`.
  //   Errors: UNAVAILABLE: device memory is full now, retry; RESOURCE_EXHAUSTED: it was full for
  //   too long.
  absl::Status MakeRoom();
  // Calls `retry` on the GPU's executor after a short delay, or `refused`, on the loop, if the
  // executor is stopping.
  void RetryLater(Loop& loop, std::function<void()> retry,
                  std::function<void(const absl::Status&)> refused) const;
};

// The fetches that have not ended. Each ends once: whichever of End, Cancel and Abort comes first
// calls its callback, and the others then do nothing. Thread-safe; callbacks run without its lock.
class CudaIpcFetches final {
 public:
  using FetchCallback = TransportReceiver::FetchCallback;

  CudaIpcFetches() = default;
  CudaIpcFetches(const CudaIpcFetches&) = delete;
  CudaIpcFetches& operator=(const CudaIpcFetches&) = delete;

  // `done` is called here if the fetch cannot be added: its id is in use, or Abort was called.
  // Returns whether it was added.
  bool Add(const std::shared_ptr<CudaIpcFetch>& fetch, FetchCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  // Null: there is none, or it has ended.
  std::shared_ptr<CudaIpcFetch> Find(uint64_t id) const ABSL_LOCKS_EXCLUDED(mu_);
  bool IsOver(const CudaIpcFetch& fetch) const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `enqueue`, which enqueues device work and must not block, unless the fetch has ended. In
  // one step: a Cancel either finds the work enqueued, or prevents it, and waits for this fetch's
  // calls of the driver alone. `enqueue` must not end the fetch.
  //   Errors: CANCELLED; those of `enqueue`.
  absl::Status EnqueueUnlessOver(const CudaIpcFetch& fetch,
                                 absl::FunctionRef<absl::Status()> enqueue) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns false, and drops the tensor, if the fetch has ended before.
  bool End(const CudaIpcFetch& fetch, absl::StatusOr<Tensor> tensor, bool release_later)
      ABSL_LOCKS_EXCLUDED(mu_);
  // From now on the tensor is a staged one, unless the fetch has ended before: then returns false.
  bool Restage(CudaIpcFetch& fetch, absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  // Work already enqueued completes, into memory that is kept until then. A tensor that is not
  // staged is released where its fetch stops.
  void Cancel(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all fetches with `why`, and those added later with the first such status.
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::shared_ptr<CudaIpcFetch> fetch;
    FetchCallback done;
  };

  bool IsOverLocked(const CudaIpcFetch& fetch) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Entry> fetches_ ABSL_GUARDED_BY(mu_);
};

// Queries the ticket's event on the executor of the fetch's GPU, and calls `done` there when it has
// completed, when the fetch has ended, or with the device's error. Once called with OK, the ticket
// is used up as by ImportedEvents::HasPassed. No stream waits: if the producer dies, the event may
// never complete, and the fetch ends by Abort.
void AwaitEvent(std::shared_ptr<const CudaIpcFetches> fetches,
                const std::shared_ptr<CudaIpcFetch>& fetch,
                std::shared_ptr<cuda::ImportedEvents> events, const cuda::EventTicket& ticket,
                std::function<void(const absl::Status&)> done);

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_CUDA_IPC_FETCHES_H_
