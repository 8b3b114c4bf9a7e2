// SPDX-License-Identifier: Apache-2.0
// SyncGate: keeps what may synchronise a device away from work that waits for another process.
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

// Gives work that waits for other processes, and can hold back with it.
class QuietListener {
 public:
  virtual ~QuietListener() = default;
  // SyncGate::is_quiet_wanted may have changed. On the thread that wants quiet, which may hold
  // locks of its own: must not block.
  virtual void OnQuietWanted() = 0;
};

// The driver may synchronise a device when memory is allocated, freed, mapped, unmapped or pinned.
// A kernel of NCCL's that waits for a peer then never ends, if the peer waits for us. So NCCL work
// is announced here from before it is enqueued until its completion event, and everything that may
// synchronise runs when there is none. One for all GPUs of a process: with peer access, freeing
// memory of one waits for the others. Thread-safe.
// Source: NCCL's pull request 564 and issue 549; reference in docs/gpu.md.
class SyncGate final {
 public:
  SyncGate() = default;
  SyncGate(const SyncGate&) = delete;
  SyncGate& operator=(const SyncGate&) = delete;

  // Waits while a quiet action runs, which takes milliseconds; not for actions that wait
  // themselves.
  void BeginWork() ABSL_LOCKS_EXCLUDED(mu_);
  void EndWork() ABSL_LOCKS_EXCLUDED(mu_);
  // The same for work of a program, which nobody asks to hold back: it also waits for those who
  // want quiet, unless another device of this process has some under way already, which may be
  // waiting for this one.
  void BeginProgramWork(int device) ABSL_LOCKS_EXCLUDED(mu_);
  void EndProgramWork(int device) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `action` as soon as no work is in flight, and keeps new work out until it returns.
  //   doing: for the message, "unmap a peer's memory".
  //   Errors: DEADLINE_EXCEEDED if there was work all through `timeout`; the action did not run.
  absl::Status RunQuietly(absl::Duration timeout, absl::string_view doing,
                          absl::FunctionRef<void()> action) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether somebody waits for quiet, or makes use of it. Whoever gives grants holds back then:
  // with work always in flight nothing is ever mapped.
  bool is_quiet_wanted() const ABSL_LOCKS_EXCLUDED(mu_);
  int work_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // Told of each change from now on, for as long as it lives.
  void Listen(std::weak_ptr<QuietListener> listener) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void TellListeners() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_free() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return work_count_ == 0 && !is_quiet_; }
  bool is_open_for(int device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool is_open() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !is_quiet_; }

  mutable absl::Mutex mu_;
  int work_count_ ABSL_GUARDED_BY(mu_) = 0;
  // Of work_count_, by device; none is zero.
  absl::flat_hash_map<int, int> program_work_ ABSL_GUARDED_BY(mu_);
  int waiting_count_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_quiet_ ABSL_GUARDED_BY(mu_) = false;
  // Somebody has had to wait, and not all are through since. Listeners are told of every change:
  // who finds quiet at once changes nothing.
  bool is_wanted_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::weak_ptr<QuietListener>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_SYNC_GATE_H_
