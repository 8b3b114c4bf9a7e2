// SPDX-License-Identifier: Apache-2.0
// SyncGate: keeps calls that may synchronize a device apart from work that waits for a peer.
#ifndef FERRY_GPU_CUDA_SYNC_GATE_H_
#define FERRY_GPU_CUDA_SYNC_GATE_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ferry::cuda {

// Starts work that waits for other processes, and can pause doing so.
class QuiesceListener {
 public:
  virtual ~QuiesceListener() = default;
  // SyncGate::is_quiesce_requested may have changed. Called on the thread that requests quiet,
  // which may hold its own locks: must not block.
  virtual void OnQuiesceRequested() = 0;
};

// The driver may synchronize a device when memory is allocated, freed, mapped, unmapped or pinned.
// If a NCCL kernel waits for a peer, and the peer waits for us, that deadlocks. So NCCL work is
// registered here from before it is enqueued until its completion event, and every call that may
// synchronize runs when there is none. One for all GPUs of a process: with peer access, freeing
// memory of one synchronizes the others. Thread-safe.
// Source: NCCL's pull request 564 and issue 549; reference in docs/gpu.md.
class SyncGate final {
 public:
  SyncGate() = default;
  SyncGate(const SyncGate&) = delete;
  SyncGate& operator=(const SyncGate&) = delete;

  // Blocks while a quiet action runs, which takes milliseconds; does not block for actions that are
  // waiting themselves.
  void BeginWork() ABSL_LOCKS_EXCLUDED(mu_);
  void EndWork() ABSL_LOCKS_EXCLUDED(mu_);
  // The same for work of a program, which cannot be paused: it also waits for requested quiet
  // actions, unless another device of this process has program work in flight already, which may be
  // waiting for this one.
  void BeginProgramWork(int device) ABSL_LOCKS_EXCLUDED(mu_);
  void EndProgramWork(int device) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `action` as soon as no work is in flight, and blocks new work until it returns.
  //   doing: for the message, "unmap a peer's memory".
  //   Errors: DEADLINE_EXCEEDED if there was work for all of `timeout`; the action did not run.
  absl::Status RunQuiesced(absl::Duration timeout, absl::string_view doing,
                           absl::FunctionRef<void()> action) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether an action waits for quiet, or runs. Batch agreements start no transfers then: with work
  // always in flight nothing would ever be mapped.
  bool is_quiesce_requested() const ABSL_LOCKS_EXCLUDED(mu_);
  int work_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // Notifies `listener` of each change from now on, for as long as it exists.
  void Listen(std::weak_ptr<QuiesceListener> listener) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void TellListeners() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_free() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return work_count_ == 0 && !is_quiet_; }
  bool is_open_for(int device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool is_open() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !is_quiet_; }

  mutable absl::Mutex mu_;
  int work_count_ ABSL_GUARDED_BY(mu_) = 0;
  // The program work in work_count_, by device; entries are positive.
  absl::flat_hash_map<int, int> program_work_ ABSL_GUARDED_BY(mu_);
  int waiting_count_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_quiet_ ABSL_GUARDED_BY(mu_) = false;
  // An action has had to wait, and not all have finished since. Listeners are notified of every
  // change: an action that finds quiet at once changes nothing.
  bool is_wanted_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::weak_ptr<QuiesceListener>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_SYNC_GATE_H_
