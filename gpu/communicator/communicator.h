// SPDX-License-Identifier: Apache-2.0
// NcclCommunicator: one rank of a NCCL communicator, bootstrapped through the store.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "gpu/communicator/communicator_bootstrap.h"
#include "gpu/communicator/communicator_end.h"
#include "gpu/gpus.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry {

// Receives the store's events for a bootstrap. Thread-safe.
class BootstrapStoreListener {
 public:
  virtual ~BootstrapStoreListener() = default;
  virtual void Entry(std::string key, std::string value) = 0;
  virtual void Watching() = 0;
  virtual void StoreFailed(absl::Status why) = 0;
};

class NcclCommunicator;

// Creates a bootstrap's store; it may call `listener`, which outlives it, from any thread.
using BootstrapStoreFactory = std::function<std::unique_ptr<BootstrapStore>(
    std::shared_ptr<BootstrapStoreListener> listener)>;

struct CommunicatorOptions {
  absl::Duration timeout = absl::Seconds(60);
  // Limit on NCCL's CTAs; fewer use less memory and less bandwidth. 0: NCCL's default.
  int max_ctas = 0;
  // Number of ranks per unique id; the same on all ranks.
  int ranks_per_id = kRanksPerUniqueId;
  // Whether the ranks exchange data once before the communicator is returned. Without that its
  // first use between two ranks must be a group with a send and a receive on both; callers that
  // agree on the order of all operations on several communicators can use that instead.
  bool warms_up = true;
  // Time for NCCL to end it without an abort.
  CommunicatorEnd::Options end;
  // Makes it of a communicator that exists, if all ranks ask for that, offer the same, and have an
  // NCCL that can (ChooseCommunicatorWay); otherwise, and after a failure, it is created as usual.
  // Not proven on hardware. `from`: the one that this rank holds, of the same GPU, with no call in
  // progress: it ends, in any case, and its operations with it. Null: this rank joins those that
  // hold one.
  struct Origin {
    std::shared_ptr<NcclCommunicator> from;
  };
  std::optional<Origin> origin;
  // Called every millisecond during creation: an error cancels it. May be null.
  std::function<absl::Status()> keep_going;
  // Returns true if the process of a rank has ended: an abort does not wait for it. Called while
  // the communicator ends, from any thread, every millisecond. Null: unknown.
  std::function<bool(const CommunicatorMember& member)> is_gone;
};

// Shared by its users. The handle is a non-blocking communicator: calls return ncclInProgress, and
// ncclCommGetAsyncError reports their completion. Calls on the communicators of one device must be
// made on one thread (Run), in one order on all ranks. A program's operations and keyed transfers
// over NCCL take turns on a GPU, since there is no order between them: Run ensures that. Ferry does
// not track operations made with get() or RunWithoutTurn: they must not be in flight on the same
// GPUs as keyed transfers (close the step before, or disable keyed transfers by NCCL:
// --nccl-memory-bytes=0, in programs NcclTransportOptions::memory_bytes).
class NcclCommunicator final {
 public:
  // Blocks until all ranks have joined, initialized the communicator and exchanged data with each
  // other, so that its first use is no different from its second.
  //   gpus: `ordinal` is the rank's device among them; outlives the result.
  //   Errors: DEADLINE_EXCEEDED naming the ranks that have not joined, or what they wait for;
  //   FAILED_PRECONDITION ranks have different versions of NCCL, or NCCL_COMM_BLOCKING is set;
  //   UNAVAILABLE the store or a rank has failed; RESOURCE_EXHAUSTED; INTERNAL with NCCL's error.
  static absl::StatusOr<std::shared_ptr<NcclCommunicator>> Make(
      std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, int ordinal, const CommunicatorKey& key,
      int rank, const BootstrapStoreFactory& store, const CommunicatorOptions& options);
  // As Close if no operation of Run is in flight and NCCL reports no error, else as Abort.
  ~NcclCommunicator();

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // ncclComm_t.
  nccl::Communicator get() const;
  const nccl::NcclApi& api() const;
  int rank() const;
  int size() const;
  // The device's ordinal in this process.
  int ordinal() const;
  uint32_t generation() const;
  // How it was made. REQUIRES: made.
  CommunicatorWay way() const;
  // Calls `on_event` whenever the store has reported an event for it: from any thread, with no lock
  // held, also after this is destroyed; at once if an event is pending. Then call Check.
  void Listen(std::function<void()> on_event);
  // Returns OK if all ranks still use it, according to the store. Does not block.
  //   Errors: ABORTED: a rank has abandoned it, and operations in flight may never complete.
  absl::Status Check();
  // Returns OK if it can be reused as is: no operation of Run is in flight, all are enqueued, and
  // neither NCCL nor, according to the store, any rank reports an error. Operations made with get()
  // are not tracked.
  //   Errors: FAILED_PRECONDITION work is in flight; ABORTED; NCCL's error.
  absl::Status CheckReusable();
  // Ends it for good, and advances its generation: its ids are never reused. Close is for one
  // without work in flight: NCCL finalizes and destroys it, or after some seconds aborts it. Abort
  // stops all operations on it, and waits for the other ranks to do the same, for two seconds at
  // most, before it frees what their kernels may read. Both block until NCCL returns, which may
  // require that other ranks and communicators end too: each on its own thread. A kernel may leave
  // its stream later than that: memory that it uses may be reused when an event recorded afterwards
  // on its stream has completed.
  //   on_stopped: if NCCL can revoke, called on this thread as soon as it enqueues nothing of the
  //   communicator any more, and kernels of it are leaving. May be null.
  //   REQUIRES: no call with get() is in progress or made from now on; one of them called, once.
  void Close(const absl::Status& why);
  void Abort(const absl::Status& why, const std::function<void()>& on_stopped = nullptr);
  using RunCalls =
      absl::FunctionRef<nccl::Result(const nccl::NcclTable& nccl, nccl::Communicator comm)>;
  // Makes NCCL calls on the device's thread `ferry-ncclN`, which makes all of Ferry's, and waits
  // until their operations are enqueued: later work of the caller on the same stream runs after
  // them. First waits for keyed transfers by NCCL on this GPU to end; until the stream's work has
  // completed, new ones wait, for a second, and then use other paths; and Ferry allocates no memory
  // from the driver, which might synchronize the device.
  //   stream: the stream that the calls use.
  //   calls: returns the first result that is not ncclSuccess or ncclInProgress, or the last.
  //   Errors: NCCL's error; DEADLINE_EXCEEDED.
  absl::Status Run(cuda::Stream stream, RunCalls calls, absl::Duration timeout = absl::Minutes(1));
  // The same without taking turns with keyed transfers: the caller ensures that none is in flight.
  absl::Status RunWithoutTurn(RunCalls calls, absl::Duration timeout = absl::Minutes(1));
  // Blocks until NCCL has enqueued the requested operations: only then does later work on the same
  // stream run after them. The device's context need not be current.
  //   Errors: DEADLINE_EXCEEDED; the communicator's asynchronous error.
  absl::Status WaitEnqueued(absl::Duration timeout);

 private:
  class Impl;
  class Yielded;
  explicit NcclCommunicator(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_H_
