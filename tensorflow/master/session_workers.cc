// SPDX-License-Identifier: Apache-2.0
// Calls to all workers of a session.
#include "tensorflow/master/session_workers.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace ferry::master {
namespace {

// Delay before the first retry of a notification: reconnecting a channel takes a moment.
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(5);

}  // namespace

absl::Status WorkerRestarted(absl::string_view handle, absl::string_view worker) {
  return absl::AbortedError(absl::StrCat("Session handle is not found: ", handle,
                                         ". Possibly this worker (\"", worker,
                                         "\") just restarted."));
}

absl::Status FromWorker(absl::string_view worker, absl::string_view what,
                        const absl::Status& status) {
  if (status.ok()) return status;
  const absl::StatusCode code =
      absl::IsUnavailable(status) ? absl::StatusCode::kAborted : status.code();
  return absl::Status(code, absl::StrCat("From ", worker, ":\n", what, ": ", status.message()));
}

std::vector<int> SessionWorkers::TakeLost(const Cluster& cluster) {
  absl::flat_hash_map<absl::string_view, uint64_t> alive;
  for (const ClusterWorker& worker : cluster.workers) alive[worker.name] = worker.incarnation;
  std::vector<int> lost;
  absl::MutexLock lock(&mu_);
  for (int i = 0; i < size(); ++i) {
    absl::Status& status = lost_[static_cast<size_t>(i)];
    if (!status.ok()) continue;
    const auto found = alive.find(worker(i).name);
    if (found != alive.end() && found->second == worker(i).incarnation) continue;
    status = WorkerRestarted(handle_, worker(i).name);
    lost.push_back(i);
  }
  return lost;
}

absl::Status SessionWorkers::CheckAlive(int worker) const {
  absl::MutexLock lock(&mu_);
  return lost_[static_cast<size_t>(worker)];
}

void SessionWorkers::Open(tensorflow::CreateWorkerSessionRequest request, absl::Duration timeout,
                          FanOut::Done done) {
  request.set_session_handle(handle_);
  auto all = FanOut::Start([self = shared_from_this(),
                            done = std::move(done)](absl::Status status) mutable {
    if (status.ok()) return std::move(done)(std::move(status));
    // Close at all workers: one may have received the request although its response was lost.
    self->Close([status = std::move(status), done = std::move(done)](const absl::Status&) mutable {
      std::move(done)(std::move(status));
    });
  });
  for (int i = 0; i < size(); ++i) {
    all->Begin();
    worker(i).link->CreateWorkerSession(
        request, {timeout, nullptr},
        [self = shared_from_this(), all, i, name = worker(i).name](const auto& response) {
          if (response.ok()) return all->End();
          if (absl::IsUnavailable(response.status())) {
            absl::MutexLock lock(&self->mu_);
            self->is_unopened_[static_cast<size_t>(i)] = true;
          }
          // Not FromWorker: UNAVAILABLE stays retryable, since no session exists yet.
          all->End(absl::Status(
              response.status().code(),
              absl::StrCat("From ", name, ":\nopening a session: ", response.status().message())));
        });
  }
  all->End();
}

bool SessionWorkers::is_closed() const {
  absl::MutexLock lock(&mu_);
  return is_closed_;
}

void SessionWorkers::Close(FanOut::Done done) {
  {
    absl::MutexLock lock(&mu_);
    is_closed_ = true;
  }
  auto all = FanOut::Start(std::move(done));
  const Tell tell = [this](WorkerLink& link, Told told) {
    tensorflow::DeleteWorkerSessionRequest request;
    request.set_session_handle(handle_);
    link.DeleteWorkerSession(request, {limits_.close_timeout, nullptr},
                             [told = std::move(told)](const auto& response) mutable {
                               std::move(told)(response.status());
                             });
  };
  for (int i = 0; i < size(); ++i) Insist(i, /*even_if_lost=*/true, tell, all);
  all->End();
}

void SessionWorkers::Cleanup(int64_t step_id, std::vector<int> workers,
                             absl::AnyInvocable<void() &&> done) {
  auto all =
      FanOut::Start([done = std::move(done)](const absl::Status&) mutable { std::move(done)(); });
  const Tell tell = [this, step_id](WorkerLink& link, Told told) {
    tensorflow::CleanupGraphRequest request;
    request.set_step_id(step_id);
    link.CleanupGraph(request, {limits_.cleanup_timeout, nullptr},
                      [told = std::move(told)](const auto& response) mutable {
                        std::move(told)(response.status());
                      });
  };
  // A lost worker drops its steps with the session.
  for (const int worker : workers) Insist(worker, /*even_if_lost=*/false, tell, all);
  all->End();
}

void SessionWorkers::Insist(int index, bool even_if_lost, Tell tell, std::shared_ptr<FanOut> all) {
  bool is_lost = false;
  bool may_insist = true;
  {
    absl::MutexLock lock(&mu_);
    is_lost = !lost_[static_cast<size_t>(index)].ok();
    may_insist = !is_unopened_[static_cast<size_t>(index)] && (even_if_lost || !is_lost);
  }
  // A lost worker may still be alive but cut off from the coordinator: notify it, but do not wait.
  if (is_lost) all = nullptr;
  if (all != nullptr) all->Begin();
  Message message = {index, even_if_lost, tell, timers_.Now() + limits_.tell_again_for,
                     kFirstPause};
  tell(*worker(index).link, [self = shared_from_this(), message = std::move(message), may_insist,
                             all](const absl::Status& status) mutable {
    // CANCELLED means that the master is stopping.
    if (!status.ok() && !absl::IsCancelled(status) && may_insist) {
      self->TellAgain(std::move(message));
    }
    if (all != nullptr) all->End();
  });
}

void SessionWorkers::TellAgain(Message message) {
  const absl::Time next = timers_.Now() + message.pause;
  if (next > message.until) return;
  timers_.Add(next, [self = shared_from_this(), message = std::move(message)]() mutable {
    const bool is_last = !message.even_if_lost && !self->CheckAlive(message.worker).ok();
    message.pause = std::min(2 * message.pause, kLongestPause);
    WorkerLink& link = *self->worker(message.worker).link;
    const Tell tell = message.tell;
    tell(link, [self, message = std::move(message), is_last](const absl::Status& status) mutable {
      if (status.ok() || absl::IsCancelled(status) || is_last) return;
      self->TellAgain(std::move(message));
    });
  });
}

}  // namespace ferry::master
