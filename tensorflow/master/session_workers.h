// SPDX-License-Identifier: Apache-2.0
// SessionWorkers: the workers of one session, and which of them are lost to it.
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
  // Of registering a graph, and of ending a session.
  absl::Duration register_timeout = absl::Seconds(60);
  absl::Duration close_timeout = absl::Seconds(10);
  // Of cleaning up a step at a worker that lives.
  absl::Duration cleanup_timeout = absl::Seconds(30);
  // How long a worker is told again, with pauses that grow, that a step or the session is over,
  // when it does not answer.
  absl::Duration tell_again_for = absl::Minutes(2);
};

// Thread-safe. Shared by a session and what it has under way.
class SessionWorkers final : public std::enable_shared_from_this<SessionWorkers> {
 public:
  // `timers` outlive it.
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

  // From the cluster as it is now, which workers live no more; each is told of once.
  std::vector<int> TakeLost(const Cluster& cluster) ABSL_LOCKS_EXCLUDED(mu_);
  // ABORTED, with its name, if that worker is lost.
  absl::Status CheckAlive(int worker) const ABSL_LOCKS_EXCLUDED(mu_);

  // Opens the session at all workers. What was opened is closed again if one fails.
  //   request: but for the handle, which is filled in.
  void Open(tensorflow::CreateWorkerSessionRequest request, absl::Duration timeout,
            FanOut::Done done);
  // Ends it at all workers, each of which is waited for once; those that are lost are not. A worker
  // that does not answer is told again, afterwards. Never fails.
  void Close(FanOut::Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether Close was called: graphs need not be given back one by one.
  bool is_closed() const ABSL_LOCKS_EXCLUDED(mu_);

  // The step is over at these workers; as Close.
  void Cleanup(int64_t step_id, std::vector<int> workers, absl::AnyInvocable<void() &&> done);

 private:
  using Told = absl::AnyInvocable<void(const absl::Status&) &&>;
  using Tell = std::function<void(WorkerLink&, Told)>;
  // Something that a worker has to hear, and when to give up.
  struct Message {
    int worker = 0;
    // Whether it is worth while to tell one that is lost.
    bool even_if_lost = false;
    Tell tell;
    absl::Time until;
    absl::Duration pause;
  };

  // Until it has been heard. `all` ends once, after the first time.
  void Insist(int worker, bool even_if_lost, Tell tell, std::shared_ptr<FanOut> all);
  void TellAgain(Message message);

  const std::string handle_;
  const SessionDevices devices_;
  const SessionCallLimits limits_;
  Timers& timers_;
  mutable absl::Mutex mu_;
  // By worker; empty if it lives.
  std::vector<absl::Status> lost_ ABSL_GUARDED_BY(mu_);
  // By worker: it could not be reached, and has no session.
  std::vector<bool> is_unopened_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

// ABORTED: what TensorFlow's worker says that has restarted since the session began.
absl::Status WorkerRestarted(absl::string_view handle, absl::string_view worker);
// The error of a call to a worker, with the worker's name. UNAVAILABLE becomes ABORTED: clients
// would repeat by themselves what may have been begun.
absl::Status FromWorker(absl::string_view worker, absl::string_view what,
                        const absl::Status& status);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_WORKERS_H_
