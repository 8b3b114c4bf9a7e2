// SPDX-License-Identifier: Apache-2.0
// NcclCommunicator: one rank of a clique of devices that found together through the store.
#ifndef FERRY_GPU_CLIQUE_COMMUNICATOR_H_
#define FERRY_GPU_CLIQUE_COMMUNICATOR_H_

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

#include "gpu/clique/communicator_bootstrap.h"
#include "gpu/gpus.h"
#include "gpu/nccl/nccl_api.h"

namespace ferry {

// Hears what the store says to a plan. Thread-safe.
class CliqueListener {
 public:
  virtual ~CliqueListener() = default;
  virtual void Entry(std::string key, std::string value) = 0;
  virtual void Watching() = 0;
  virtual void StoreFailed(absl::Status why) = 0;
};

// Makes the store of a plan; it may speak to `listener`, which outlives it, from any thread.
using CliqueStoreFactory =
    std::function<std::unique_ptr<CliqueStore>(std::shared_ptr<CliqueListener> listener)>;

struct CommunicatorOptions {
  absl::Duration timeout = absl::Seconds(60);
  // What it may take of the GPU; fewer is less memory and less bandwidth. 0: NCCL's own.
  int max_ctas = 0;
  // Each id that NCCL makes is of so many ranks; the same on all.
  int ranks_per_id = kRanksPerUniqueId;
  // Whether the ranks exchange something with each other before anybody has it. Without that its
  // first use between two ranks must be a group with a send and a receive on both: but whoever
  // agrees on the order of everything on several communicators can have that in its place.
  bool warms_up = true;
  // Asked every millisecond while it is being made: an error gives it up. May be null.
  std::function<absl::Status()> keep_going;
};

// Shared by whoever uses it. The handle is a non-blocking communicator: calls return
// ncclInProgress, and ncclCommGetAsyncError says when they are through. Calls on the communicators
// of one device belong to one thread (Run), in one order on all ranks. A program's work and keyed
// transfers over NCCL take turns on a GPU, since nobody orders one against the other: Run sees to
// that. Ferry does not know of what is done with get() or RunAside: it must not be under way on the
// same GPUs as keyed transfers (close the step before, or do without keyed transfers by NCCL:
// --nccl-memory-bytes=0, in programs NcclTransportOptions::memory_bytes).
class NcclCommunicator final {
 public:
  // Blocks until all ranks have come, have initialised it and have exchanged something with each
  // other, so that its first use is no different from its second.
  //   gpus: of which `ordinal` is the rank's device; outlives it.
  //   Errors: DEADLINE_EXCEEDED naming the ranks that have not come, or what they wait for;
  //   FAILED_PRECONDITION ranks have different versions of NCCL, or NCCL_COMM_BLOCKING is set;
  //   UNAVAILABLE the store or a rank is
  //   gone; RESOURCE_EXHAUSTED; INTERNAL with what NCCL says.
  static absl::StatusOr<std::shared_ptr<NcclCommunicator>> Make(
      std::shared_ptr<const nccl::NcclApi> api, Gpus& gpus, int ordinal, const CliqueKey& key,
      int rank, const CliqueStoreFactory& store, const CommunicatorOptions& options);
  // Aborts what is under way on it, and moves the clique on: its ids are never used again.
  ~NcclCommunicator();

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // ncclComm_t.
  nccl::Communicator get() const;
  const nccl::NcclApi& api() const;
  int rank() const;
  int size() const;
  // Of the device in this process.
  int ordinal() const;
  uint32_t generation() const;
  // Calls `heard` whenever the store has said something of it: from any thread, with no lock held,
  // also when this is gone; at once if there is something already. Then ask Check.
  void Listen(std::function<void()> heard);
  // Whether all ranks still want it, as far as the store has said. Does not block.
  //   Errors: ABORTED: one has given it up, and what is under way on it may wait for ever.
  absl::Status Check();
  // Whether it could be used by others as it is: nothing of Run's is under way, it is enqueued, and
  // NCCL and all ranks, as far as the store has said, have nothing against it. What was done with
  // get() is not known.
  //   Errors: FAILED_PRECONDITION work is under way; ABORTED; what NCCL says.
  absl::Status Settled();
  // Throws out whatever runs on it, for ever, and moves the clique on. Blocks until NCCL has let
  // go, which may need that others are aborted too: each on a thread of its own. REQUIRES: nobody
  // is in a call with get(), or makes one from now on; once.
  void Abort(const absl::Status& why);
  using RunCalls =
      absl::FunctionRef<nccl::Result(const nccl::NcclTable& nccl, nccl::Communicator comm)>;
  // Makes calls of NCCL's on the device's thread `ferry-ncclN`, which makes all of Ferry's, and
  // waits until what they ask for is enqueued: what the caller enqueues on the same stream from
  // then on is behind it. Before, it waits for keyed transfers by NCCL on this GPU to end; until
  // the stream is through, new ones wait, for a second, and then go other ways; and Ferry gets no
  // memory from the driver, which might wait for the device.
  //   stream: what the calls use.
  //   calls: returns the first result that is not ncclSuccess or ncclInProgress, or the last.
  //   Errors: what NCCL says; DEADLINE_EXCEEDED.
  absl::Status Run(cuda::Stream stream, RunCalls calls, absl::Duration timeout = absl::Minutes(1));
  // The same beside keyed transfers, of which the caller knows that none is under way.
  absl::Status RunAside(RunCalls calls, absl::Duration timeout = absl::Minutes(1));
  // Waits until NCCL has enqueued what it was asked for: only then is what is enqueued on the same
  // stream behind it. With the device's context current or not.
  //   Errors: DEADLINE_EXCEEDED; what NCCL says has become of the communicator.
  absl::Status WaitEnqueued(absl::Duration timeout);

 private:
  class Maker;
  explicit NcclCommunicator(std::unique_ptr<Maker> maker);

  const std::unique_ptr<Maker> maker_;
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_COMMUNICATOR_H_
