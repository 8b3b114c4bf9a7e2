// SPDX-License-Identifier: Apache-2.0
// LighthouseServer: serves torchft.LighthouseService.
#ifndef FERRY_COORD_SERVER_LIGHTHOUSE_SERVER_H_
#define FERRY_COORD_SERVER_LIGHTHOUSE_SERVER_H_

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

#include <grpcpp/support/slice.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/pause_detector.h"
#include "coord/lighthouse/lighthouse.h"
#include "coord/server/unary_service.h"
#include "net/loop.h"

namespace ferry::coord {

// Thread-safe. A Lighthouse with its lock, its timer and its two RPCs. Independent of the
// coordinator's job; has no timer before the first call. Calls time out shortly before the client's
// deadline, so that the client gets an error that names the missing replicas.
class LighthouseServer final {
 public:
  // `clock` outlives it.
  explicit LighthouseServer(const LighthouseOptions& options, const Clock& clock = SteadyClock())
      : clock_(clock), lighthouse_(options, clock, completions_) {}

  // Call before the server starts. Registers the RPCs in `methods`, which must not outlive it. Its
  // timer runs on `loop`, which ends before it is destroyed.
  void Serve(Frontend& frontend, GenericMethodTable& methods, std::shared_ptr<Loop> loop)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `body(lighthouse)` under the lock and returns its result; then runs the callbacks of the
  // calls that have ended, without the lock. The body must not block.
  template <typename Body>
  auto Run(Body&& body) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Completion> due;
    mu_.Lock();
    NoticePause();
    using Result = decltype(body(lighthouse_));
    if constexpr (std::is_void_v<Result>) {
      body(lighthouse_);
      due = FinishRun();
      mu_.Unlock();
      RunAll(due);
    } else {
      Result result = body(lighthouse_);
      due = FinishRun();
      mu_.Unlock();
      RunAll(due);
      return result;
    }
  }

  LighthouseReport Report(size_t max_replicas) ABSL_LOCKS_EXCLUDED(mu_) {
    return Run([max_replicas](Lighthouse& lighthouse) { return lighthouse.Report(max_replicas); });
  }

  // Ends all calls with UNAVAILABLE, including later ones.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static void RunAll(std::vector<Completion>& due) {
    for (Completion& completion : due) std::move(completion)();
  }
  void Join(UnaryCall& call, grpc::ByteBuffer& bytes);
  void Heartbeat(UnaryCall& call, grpc::ByteBuffer& bytes);
  // Returns the serialized response with this quorum, which is cached for its other members.
  grpc::Slice ResponseOf(const QuorumPtr& quorum) ABSL_LOCKS_EXCLUDED(response_mu_);

  // While this process was stopped (SIGSTOP, a suspended VM) it received no heartbeats, which must
  // not count against the replicas. Called before every use of the lighthouse.
  void NoticePause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets the timer if necessary, and returns the callbacks to run.
  std::vector<Completion> FinishRun() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnTimer(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after Serve.
  const Clock& clock_;
  std::shared_ptr<Loop> loop_;

  absl::Mutex mu_;
  Completions completions_ ABSL_GUARDED_BY(mu_);
  Lighthouse lighthouse_ ABSL_GUARDED_BY(mu_);
  PauseDetector pause_detector_ ABSL_GUARDED_BY(mu_);
  // When the timer is due; InfiniteFuture if there is none. Timers with another number are stale.
  absl::Time timer_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  uint64_t timer_number_ ABSL_GUARDED_BY(mu_) = 0;

  absl::Mutex response_mu_;
  QuorumPtr response_of_ ABSL_GUARDED_BY(response_mu_);
  grpc::Slice response_ ABSL_GUARDED_BY(response_mu_);
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_LIGHTHOUSE_SERVER_H_
