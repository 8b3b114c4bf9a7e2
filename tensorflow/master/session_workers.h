// SPDX-License-Identifier: Apache-2.0
// SessionWorkers: the workers of one session, and which of them are lost.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_WORKERS_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_WORKERS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "tensorflow/master/fan_out.h"
#include "tensorflow/master/session_devices.h"
#include "tensorflow/master/timers.h"

namespace ferry::master {

struct SessionCallLimits {
  // Timeout for registering a graph, and for closing a session.
  absl::Duration register_timeout = absl::Seconds(60);
  absl::Duration close_timeout = absl::Seconds(10);
  // Timeout for cleaning up a step at a live worker.
  absl::Duration cleanup_timeout = absl::Seconds(30);
  // How long to retry, with exponential backoff, notifying a worker that does not answer of the end
  // of a step or session.
  absl::Duration tell_again_for = absl::Minutes(2);
};

// Thread-safe. Shared by a session and its pending operations.
class SessionWorkers final : public std::enable_shared_from_this<SessionWorkers> {
 public:
  // `timers` must outlive it.
  SessionWorkers(std::string handle, SessionDevices devices, SessionCallLimits limits,
                 Timers& timers)
      : handle_(std::move(handle)),
        devices_(std::move(devices)),
        limits_(limits),
        timers_(timers),
        lost_(devices_.workers.size()),
        is_unopened_(devices_.workers.size(), false) {}

  const std::string& handle() const { return handle_; }
  const SessionDevices& devices() const { return devices_; }
  const SessionCallLimits& limits() const { return limits_; }
  const ClusterWorker& worker(int index) const {
    return devices_.workers[static_cast<size_t>(index)];
  }
  int size() const { return static_cast<int>(devices_.workers.size()); }

  // Returns the workers that are no longer in `cluster`; each is returned only once.
  std::vector<int> TakeLost(const Cluster& cluster) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns ABORTED, with its name, if the worker is lost.
  absl::Status CheckAlive(int worker) const ABSL_LOCKS_EXCLUDED(mu_);

  // Opens the session at all workers. If one fails, closes it again at the others.
  //   request: complete except for the handle, which is filled in.
  void Open(tensorflow::CreateWorkerSessionRequest request, absl::Duration timeout,
            FanOut::Done done);
  // Closes the session at all workers. Waits for one attempt per worker, except for lost ones;
  // workers that do not answer are retried in the background. Never fails.
  void Close(FanOut::Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // True after Close: graphs need not be deregistered one by one.
  bool is_closed() const ABSL_LOCKS_EXCLUDED(mu_);

  // Cleans up the step at these workers; waits and retries as Close does.
  void Cleanup(int64_t step_id, std::vector<int> workers, absl::AnyInvocable<void() &&> done);

 private:
  using Told = absl::AnyInvocable<void(const absl::Status&) &&>;
  using Tell = std::function<void(WorkerLink&, Told)>;
  // A notification to a worker, and when to give up.
  struct Message {
    int worker = 0;
    // Also send it to a lost worker.
    bool even_if_lost = false;
    Tell tell;
    absl::Time until;
    absl::Duration pause;
  };

  // Sends the notification until it is acknowledged. `all` ends once, after the first attempt.
  void Insist(int worker, bool even_if_lost, Tell tell, std::shared_ptr<FanOut> all);
  void TellAgain(Message message);

  const std::string handle_;
  const SessionDevices devices_;
  const SessionCallLimits limits_;
  Timers& timers_;
  mutable absl::Mutex mu_;
  // Per worker; OK while it is alive.
  std::vector<absl::Status> lost_ ABSL_GUARDED_BY(mu_);
  // Per worker: could not be reached, so it has no session.
  std::vector<bool> is_unopened_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

// Returns the ABORTED error of a TensorFlow worker that restarted since the session began.
absl::Status WorkerRestarted(absl::string_view handle, absl::string_view worker);
// Adds the worker's name to an error of a call to it. Maps UNAVAILABLE to ABORTED: clients would
// retry on their own what may have started.
absl::Status FromWorker(absl::string_view worker, absl::string_view what,
                        const absl::Status& status);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_WORKERS_H_
