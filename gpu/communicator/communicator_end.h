// SPDX-License-Identifier: Apache-2.0
// CommunicatorEnd: how a NCCL communicator ends.
#ifndef FERRY_GPU_COMMUNICATOR_COMMUNICATOR_END_H_
#define FERRY_GPU_COMMUNICATOR_COMMUNICATOR_END_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/clock.h"

namespace ferry {

// One that is idle is finalized, and destroyed when NCCL has flushed it. One with work in flight is
// revoked, if the library can do that: its kernels leave before anything that a peer may still read
// is freed. ncclCommAbort is the last resort: after an error, a deadline, or a revocation, which
// NCCL refuses for what has been finalized.
//
//   Open -> Finalizing -> Destroying -> Ended
//   Open -> Revoking ---> Aborting ---> Ended
//   Open, Finalizing, Destroying -> Aborting
//
// Begin, Poll and GiveUp do not block; Free does. Not thread-safe: one thread makes all calls of a
// communicator that ends.
class CommunicatorEnd final {
 public:
  enum class State { kOpen, kFinalizing, kRevoking, kDestroying, kAborting, kEnded };

  // NCCL's functions, for one communicator. OK: success, or in progress.
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
  };

  struct Options {
    // NCCL finalizes in milliseconds what is idle.
    absl::Duration finalize_timeout = absl::Seconds(5);
    // Kernels leave within microseconds once they are told to; NCCL's threads for ranks of the same
    // machine leave when those have been told as well.
    absl::Duration revoke_timeout = absl::Seconds(2);
  };

  // `calls` and `clock` must outlive it.
  CommunicatorEnd(Calls& calls, const Clock& clock, const Options& options)
      : calls_(calls), clock_(clock), options_(options) {}

  // Call once.
  //   is_idle: nothing is in flight on it, and NCCL reports no error.
  void Begin(bool is_idle);
  // While it waits for NCCL. Call periodically.
  bool is_waiting() const { return state_ == State::kFinalizing || state_ == State::kRevoking; }
  void Poll();
  // Aborts instead of destroying. REQUIRES: begun, not ended.
  void GiveUp(const absl::Status& why);
  // Releases it. REQUIRES: begun, and not is_waiting().
  void Free();

  State state() const { return state_; }
  // Why it was not simply finalized and destroyed; OK: it was.
  const absl::Status& problem() const { return problem_; }

 private:
  void BeginRevoking();
  // The first problem is kept.
  void Abandon(const absl::Status& why);

  Calls& calls_;
  const Clock& clock_;
  const Options options_;
  State state_ = State::kOpen;
  absl::Time deadline_;
  absl::Status problem_;
};

}  // namespace ferry

#endif  // FERRY_GPU_COMMUNICATOR_COMMUNICATOR_END_H_
