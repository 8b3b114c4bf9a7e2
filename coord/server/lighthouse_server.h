// SPDX-License-Identifier: Apache-2.0
// LighthouseServer: torchft.LighthouseService, which forms quorums of replica groups.
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

// Thread-safe. A Lighthouse with its lock, its timers and its two methods on the wire. It is
// independent of the coordinator's job, and has no timer before the first call. Calls end a moment
// before the client's deadline, so that the error says who is missing: the client's own does not.
class LighthouseServer final {
 public:
  // `clock` outlives it.
  explicit LighthouseServer(LighthouseOptions options, const Clock& clock = SteadyClock())
      : clock_(clock), lighthouse_(std::move(options), clock, completions_) {}

  // Before the server starts: adds the methods to `methods`, which it outlives, and takes the loop
  // of its timers, which ends before it is destroyed.
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

  // Ends all calls, and later ones at once.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static void RunAll(std::vector<Completion>& due) {
    for (Completion& completion : due) std::move(completion)();
  }
  void Join(UnaryCall& call, grpc::ByteBuffer& bytes);
  void Heartbeat(UnaryCall& call, grpc::ByteBuffer& bytes);
  // The response with this quorum, made once for all its members.
  grpc::Slice ResponseOf(const QuorumPtr& quorum) ABSL_LOCKS_EXCLUDED(response_mu_);

  // While the process was stopped no heartbeats were received, which must not count as silence.
  // Before every use of the lighthouse, whose rules would otherwise see silent replicas only.
  void NoticePause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets the timer, and returns the callbacks that are due.
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
  // When the timer is due, InfiniteFuture if there is none; earlier ones have lower numbers.
  absl::Time timer_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  uint64_t timer_number_ ABSL_GUARDED_BY(mu_) = 0;

  absl::Mutex response_mu_;
  QuorumPtr response_of_ ABSL_GUARDED_BY(response_mu_);
  grpc::Slice response_ ABSL_GUARDED_BY(response_mu_);
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_LIGHTHOUSE_SERVER_H_
