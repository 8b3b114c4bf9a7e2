// SPDX-License-Identifier: Apache-2.0
// CommunicatorEnd: how a NCCL communicator ends.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_END_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_END_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"

namespace ferry {

// One that is idle is finalized, and destroyed when NCCL has flushed it. One with work in flight is
// revoked, if the library can do that: its kernels leave, and nothing is freed that kernels of
// other ranks may still read. When those have left as well, or after a deadline, ncclCommAbort
// frees it. An abort of what is not revoked is the last resort: after an error, a deadline, or with
// a library that cannot revoke.
//
//   Open -> Finalizing -> Destroying -> Ended
//   Open -> Revoking -> Stopped -> Aborting -> Ended
//   Open, Finalizing, Destroying -> Aborting
//
// All calls but Free return at once. Not thread-safe: one thread makes all calls of a communicator
// that ends.
class CommunicatorEnd final {
 public:
  enum class State { kOpen, kFinalizing, kRevoking, kStopped, kDestroying, kAborting, kEnded };

  // NCCL's functions, for one communicator, and what its ranks report to each other. OK: success,
  // or in progress.
  class Calls {
   public:
    virtual ~Calls() = default;
    // ncclCommFinalize: flushes what was issued, in the background.
    virtual absl::Status Finalize() = 0;
    // False: the library is older than 2.28.7.
    virtual bool CanRevoke() const = 0;
    // ncclCommRevoke: stops what was issued, in the background, and frees nothing.
    virtual absl::Status Revoke() = 0;
    // ncclCommGetAsyncError: false: in progress.
    virtual absl::StatusOr<bool> IsSettled() = 0;
    // ncclCommDestroy. Blocks, and may wait for ranks of the same machine to end as well.
    virtual absl::Status Destroy() = 0;
    // ncclCommAbort. Blocks.
    virtual absl::Status Abort() = 0;
    // Reports to the other ranks that no operation of this one runs, or will; once.
    virtual void ReportStopped() = 0;
    // Returns true once all others have reported the same, or their processes have ended.
    virtual bool HaveOthersStopped() = 0;
    // Those that have not: "rank 1 (device 5)".
    virtual std::string DescribeOthers() = 0;
  };

  struct Options {
    // NCCL finalizes in milliseconds what is idle.
    absl::Duration finalize_timeout = absl::Seconds(5);
    // Kernels leave within microseconds once they are told to; NCCL's threads for ranks of the same
    // machine leave when those have been told as well.
    absl::Duration revoke_timeout = absl::Seconds(2);
    // Time for the other ranks to stop their operations too, before memory is freed that these may
    // read. They are told when the end begins.
    absl::Duration others_timeout = absl::Seconds(2);
  };

  // `calls` and `clock` must outlive it.
  CommunicatorEnd(Calls& calls, const Clock& clock, const Options& options)
      : calls_(calls), clock_(clock), options_(options) {}

  // Call once.
  //   is_idle: nothing is in flight on it, and NCCL reports no error.
  void Begin(bool is_idle);
  // In place of Begin for one whose initialization has not succeeded: nothing of it runs here, and
  // NCCL can only abort it.
  void BeginUninitialized();
  // While it waits for NCCL, or for other ranks. Call periodically.
  bool is_waiting() const {
    return state_ == State::kFinalizing || state_ == State::kRevoking ||
           (state_ == State::kStopped && awaits_others_);
  }
  void Poll();
  // Reports that this rank's operations are over, if NCCL has flushed or revoked them, or there
  // were none. Unless it is destroyed, this then waits for the other ranks to do the same.
  // REQUIRES: begun, and not is_waiting().
  void AwaitOthers();
  // Aborts instead of destroying. REQUIRES: begun, not ended.
  void GiveUp(const absl::Status& why);
  // Releases it, and reports that its operations are over. REQUIRES: begun, and not is_waiting().
  void Free();

  State state() const { return state_; }
  // Why it was not simply finalized and destroyed; OK: it was.
  const absl::Status& problem() const { return problem_; }

 private:
  void BeginRevoking();
  void PollOthers();
  // The first problem is kept.
  void Abandon(const absl::Status& why);

  Calls& calls_;
  const Clock& clock_;
  const Options options_;
  State state_ = State::kOpen;
  absl::Time deadline_;
  bool awaits_others_ = false;
  absl::Status problem_;
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_END_H_
