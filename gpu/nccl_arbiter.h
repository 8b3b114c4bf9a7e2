// SPDX-License-Identifier: Apache-2.0
// NcclArbiter: whether NCCL on a GPU is for keyed transfers just now, or for the program's own
// work.
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

#include "gpu/clique/first_use_sequencer.h"
#include "gpu/cuda/sync_gate.h"

namespace ferry {

// NCCL's work on a device must have an order that fits with all other devices. Of keyed transfers
// Ferry agrees on one; that of a program's collectives is the program's. Between the two there is
// none, so they take turns, on each device by itself: keyed transfers agree on nothing new, what is
// agreed ends, and then the program has its turn. No device needs another one for that, so all
// ranks of a collective get there. Thread-safe.
class NcclArbiter final {
 public:
  // Keyed transfers of the device.
  class Keyed {
   public:
    virtual ~Keyed() = default;
    // is_wanted() may have changed; then they hold back and say SetQuiet, or go on after
    // TryGoOn. On a thread of the program's: must not block.
    virtual void OnTurn() = 0;
  };

  //   ordinal: of the GPU, for messages.
  explicit NcclArbiter(int ordinal) : ordinal_(ordinal) {}
  NcclArbiter(const NcclArbiter&) = delete;
  NcclArbiter& operator=(const NcclArbiter&) = delete;

  // A program has something to do. Once for each End; several have their turns together.
  void Ask() ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: Ask, since when this device's keyed transfers have become quiet or not.
  bool has_turn() const ABSL_LOCKS_EXCLUDED(mu_);
  //   Errors: DEADLINE_EXCEEDED; End is due all the same.
  absl::Status Await(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  // --- For keyed transfers ---

  // From now on `keyed` are the device's, as long as they live.
  //   Errors: FAILED_PRECONDITION others are: another node of this process has them.
  absl::Status SetKeyed(std::weak_ptr<Keyed> keyed) ABSL_LOCKS_EXCLUDED(mu_);
  // Why SetKeyed would fail.
  absl::Status CheckKeyed() const ABSL_LOCKS_EXCLUDED(mu_);
  bool is_wanted() const ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing of theirs is under way, nor will be until TryGoOn. REQUIRES: is_wanted() was true.
  void SetQuiet() ABSL_LOCKS_EXCLUDED(mu_);
  // False: a program wants its turn, or has it.
  bool TryGoOn() ABSL_LOCKS_EXCLUDED(mu_);

  int ordinal() const { return ordinal_; }
  // Of the device's first exchanges.
  const std::shared_ptr<FirstUseSequencer>& line() const { return line_; }

 private:
  void Tell() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckKeyedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool is_quiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return is_quiet_; }

  const int ordinal_;
  const std::shared_ptr<FirstUseSequencer> line_ = std::make_shared<FirstUseSequencer>();

  mutable absl::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
  // As long as nobody uses it there are no keyed transfers.
  bool is_quiet_ ABSL_GUARDED_BY(mu_) = true;
  std::weak_ptr<Keyed> keyed_ ABSL_GUARDED_BY(mu_);
};

// A program's turn, from when it has it to when its work is over; and with it work at the gate.
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

// What NCCL's work on the GPUs of this process goes by. A process may be several nodes, each with
// Gpus of its own, but a driver waits for the devices of all, and a device has one order.
// Thread-safe.
class NcclOrder final {
 public:
  // The one that there is, as long as somebody has it.
  static std::shared_ptr<NcclOrder> OfProcess();

  std::shared_ptr<NcclArbiter> Turns(int ordinal) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<cuda::SyncGate> gate = std::make_shared<cuda::SyncGate>();

 private:
  absl::Mutex mu_;
  absl::btree_map<int, std::shared_ptr<NcclArbiter>> turns_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_GPU_NCCL_ARBITER_H_
