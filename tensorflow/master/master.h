// SPDX-License-Identifier: Apache-2.0
// Master: the sessions of a job.
#ifndef FERRY_TENSORFLOW_MASTER_MASTER_H_
#define FERRY_TENSORFLOW_MASTER_MASTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "base/cancellation_token.h"
#include "base/table_sizes.h"
#include "proto/ferry_trace.pb.h"
#include "proto/tf_master.pb.h"
#include "rendezvous/recent_request_ids.h"
#include "tensorflow/master/cluster.h"
#include "tensorflow/master/fan_out.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/session.h"
#include "tensorflow/master/session_maker.h"
#include "tensorflow/master/worker_waits.h"

namespace ferry::master {

// Implements TensorFlow's MasterService on its own messages; statuses and texts are those of
// TensorFlow 2.15 (docs/master.md). Pure: clock, workers, threads and randomness are injected.
// Thread-safe. Each `done` is called exactly once, with no lock held, on whichever thread completes
// the call, possibly before the method returns. Requests are consumed.
//   gone: cancelled when the client disconnects; null: it never does.
class Master final {
 public:
  template <typename Request>
  using Ref = std::shared_ptr<Request>;
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;
  using Gone = std::shared_ptr<CancellationToken>;

  struct Parts {
    ClusterSource& cluster;
    Timers& timers;
    // Runs long computations.
    RunWork run_work;
    // Runs scans of the cluster; must not be delayed by long work.
    RunWork run_looks;
    std::function<uint64_t()> random;
    // Nanoseconds since 1970.
    std::function<int64_t()> wall_ns = absl::GetCurrentTimeNanos;
  };

  // `parts`, and the work handed to them, must outlive it.
  Master(MasterOptions options, Parts parts);
  // REQUIRES: Stop has completed, or there never was a session.
  ~Master();

  Master(const Master&) = delete;
  Master& operator=(const Master&) = delete;

  void CreateSession(Ref<tensorflow::CreateSessionRequest> request, Gone gone,
                     Done<tensorflow::CreateSessionResponse> done);
  void ExtendSession(Ref<tensorflow::ExtendSessionRequest> request, Gone gone,
                     Done<tensorflow::ExtendSessionResponse> done);
  void PartialRunSetup(Ref<tensorflow::PartialRunSetupRequest> request, Gone gone,
                       Done<tensorflow::PartialRunSetupResponse> done);
  // Errors are returned in the response if the request asks for it.
  void RunStep(Ref<tensorflow::RunStepRequest> request, Gone gone,
               Done<tensorflow::RunStepResponse> done);
  void CloseSession(Ref<tensorflow::CloseSessionRequest> request, Gone gone,
                    Done<tensorflow::CloseSessionResponse> done);
  void ListDevices(Ref<tensorflow::ListDevicesRequest> request, Gone gone,
                   Done<tensorflow::ListDevicesResponse> done);
  void Reset(Ref<tensorflow::ResetRequest> request, Gone gone,
             Done<tensorflow::ResetResponse> done);
  void MakeCallable(Ref<tensorflow::MakeCallableRequest> request, Gone gone,
                    Done<tensorflow::MakeCallableResponse> done);
  void RunCallable(Ref<tensorflow::RunCallableRequest> request, Gone gone,
                   Done<tensorflow::RunCallableResponse> done);
  // Not part of TensorFlow: returns timings of the last steps, of the master and of all workers.
  void GetSteps(Ref<ferry::v1::GetStepsRequest> request, Gone gone,
                Done<ferry::v1::GetStepsResponse> done);
  void ReleaseCallable(Ref<tensorflow::ReleaseCallableRequest> request, Gone gone,
                       Done<tensorflow::ReleaseCallableResponse> done);

  // Notifies of workers that joined or left. Schedules a scan, which is a no-op without sessions
  // and waiting calls.
  void ClusterChanged();

  // Ends all sessions and rejects new calls. Calls `done` once the workers have been notified.
  void Stop(absl::AnyInvocable<void() &&> done) ABSL_LOCKS_EXCLUDED(mu_);

  size_t session_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table, summed over the open sessions; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);
  const MasterOptions& options() const { return options_; }
  // For parsing and serialising large messages.
  GraphWork& work() { return work_; }

 private:
  using Sessions = absl::flat_hash_map<std::string, std::shared_ptr<Session>>;

  //   Errors: ABORTED if there is no such session.
  absl::StatusOr<std::shared_ptr<Session>> Find(const std::string& handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void FinishCreate(absl::StatusOr<std::shared_ptr<Session>> session, const Gone& gone,
                    Done<tensorflow::CreateSessionResponse> done) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a session from the table; the caller must close it.
  void TakeOut(Sessions::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Sessions TakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes a session that was removed from the table.
  void Close(const std::shared_ptr<Session>& session, const absl::Status& why,
             absl::AnyInvocable<void() &&> done) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` once these sessions, and those already being closed, are closed.
  void CloseAll(const Sessions& sessions, const absl::Status& why,
                absl::AnyInvocable<void() &&> done) ABSL_LOCKS_EXCLUDED(mu_);
  void CleanupWorkers(const tensorflow::ResetRequest& request, const DeviceFilters& filters,
                      Done<tensorflow::ResetResponse> done);
  void ScheduleCollection();
  void CollectIdle() ABSL_LOCKS_EXCLUDED(mu_);
  void LookAtCluster() ABSL_LOCKS_EXCLUDED(mu_);

  const MasterOptions options_;
  StepLog log_;
  const std::function<int64_t()> wall_ns_;
  GraphWork work_;
  Budget graphs_;
  Budget feeds_;
  const RunWork run_looks_;
  const MasterContext context_;
  ClusterSource& cluster_;
  WorkerWaits waits_;
  const SessionMaker::Context maker_context_;
  RecentRequestIds recent_ids_;
  // A scan of the cluster is scheduled.
  std::atomic<bool> is_looking_{false};

  mutable absl::Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  Timers::Id collection_ ABSL_GUARDED_BY(mu_) = Timers::kNone;
  // Includes sessions being created.
  size_t session_count_ ABSL_GUARDED_BY(mu_) = 0;
  Sessions sessions_ ABSL_GUARDED_BY(mu_);
  // Sessions removed from the table but not closed yet, by handle, with the callers waiting for it.
  absl::flat_hash_map<std::string, std::vector<std::shared_ptr<FanOut>>> closing_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_MASTER_H_
