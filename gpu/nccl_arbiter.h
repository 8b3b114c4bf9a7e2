// SPDX-License-Identifier: Apache-2.0
// NcclArbiter: arbitrates NCCL on a GPU between keyed transfers and the program's own work.
#ifndef FERRY_GPU_NCCL_ARBITER_H_
#define FERRY_GPU_NCCL_ARBITER_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "gpu/communicator/warm_up_sequencer.h"
#include "gpu/cuda/sync_gate.h"

namespace ferry {

// NCCL's work on a device must have an order that is consistent with all other devices. For keyed
// transfers Ferry agrees on one; the program determines that of its collectives. Between the two
// there is none, so they take turns, independently on each device: keyed transfers agree on nothing
// new, the agreed ones complete, and then the program has its turn. No device depends on another
// for that, so all ranks of a collective get there. Thread-safe.
class NcclArbiter final {
 public:
  // The keyed transfers of the device.
  class Keyed {
   public:
    virtual ~Keyed() = default;
    // is_wanted() may have changed: stop starting transfers and call SetQuiesced once idle, or
    // resume after TryResume. Called on a thread of the program: must not block.
    virtual void OnTurn() = 0;
  };

  //   ordinal: the GPU's, for messages.
  explicit NcclArbiter(int ordinal) : ordinal_(ordinal) {}
  NcclArbiter(const NcclArbiter&) = delete;
  NcclArbiter& operator=(const NcclArbiter&) = delete;

  // Requests a turn for a program. Once for each End; several programs share a turn.
  void Request() ABSL_LOCKS_EXCLUDED(mu_);
  // True if the device's keyed transfers are quiet. REQUIRES: Request.
  bool has_turn() const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until has_turn(). Errors: DEADLINE_EXCEEDED; End must be called all the same.
  absl::Status Await(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  // --- For keyed transfers ---

  // Registers the device's keyed transfers, for as long as `keyed` exists.
  //   Errors: FAILED_PRECONDITION another node of this process has registered its own.
  absl::Status SetKeyed(std::weak_ptr<Keyed> keyed) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the error with which SetKeyed would fail.
  absl::Status CheckKeyed() const ABSL_LOCKS_EXCLUDED(mu_);
  bool is_wanted() const ABSL_LOCKS_EXCLUDED(mu_);
  // No keyed transfer is in flight, or starts before TryResume. REQUIRES: is_wanted() was true.
  void SetQuiesced() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns false if a program has requested or has a turn.
  bool TryResume() ABSL_LOCKS_EXCLUDED(mu_);

  int ordinal() const { return ordinal_; }
  // The order of the device's warm-ups.
  const std::shared_ptr<WarmUpSequencer>& warm_up_sequencer() const { return warm_up_sequencer_; }

 private:
  void NotifyKeyed() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckKeyedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool is_quiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return is_quiet_; }

  const int ordinal_;
  const std::shared_ptr<WarmUpSequencer> warm_up_sequencer_ = std::make_shared<WarmUpSequencer>();

  mutable absl::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
  // True while there are no keyed transfers.
  bool is_quiet_ ABSL_GUARDED_BY(mu_) = true;
  std::weak_ptr<Keyed> keyed_ ABSL_GUARDED_BY(mu_);
};

// A program's turn, from its start to the completion of its work, which it also registers at the
// gate.
class NcclTurn final {
 public:
  // Blocks. Errors: as NcclArbiter::Await.
  static absl::StatusOr<std::shared_ptr<NcclTurn>> Take(std::shared_ptr<NcclArbiter> turns,
                                                        std::shared_ptr<cuda::SyncGate> gate,
                                                        absl::Duration timeout);
  ~NcclTurn();

  NcclTurn(const NcclTurn&) = delete;
  NcclTurn& operator=(const NcclTurn&) = delete;

 private:
  NcclTurn(std::shared_ptr<NcclArbiter> turns, std::shared_ptr<cuda::SyncGate> gate)
      : turns_(std::move(turns)), gate_(std::move(gate)) {}

  const std::shared_ptr<NcclArbiter> turns_;
  const std::shared_ptr<cuda::SyncGate> gate_;
};

// The order of NCCL's work on the GPUs of this process. A process may host several nodes, each with
// its own Gpus, but the driver synchronizes the devices of all, and a device has one order.
// Thread-safe.
class NcclArbiters final {
 public:
  // Returns the process's instance, which exists while it is referenced.
  static std::shared_ptr<NcclArbiters> OfProcess();

  std::shared_ptr<NcclArbiter> Get(int ordinal) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<cuda::SyncGate> gate = std::make_shared<cuda::SyncGate>();

 private:
  absl::Mutex mu_;
  absl::btree_map<int, std::shared_ptr<NcclArbiter>> turns_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_NCCL_ARBITER_H_
