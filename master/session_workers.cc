// SPDX-License-Identifier: Apache-2.0
// Calls to all workers of a session.
#include "master/session_workers.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace ferry::master {
namespace {

constexpr int kMaxCleanupAttempts = 3;

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
    // Whoever has opened it, or will yet: the request may have arrived although its answer did not.
    self->Close([status = std::move(status), done = std::move(done)](const absl::Status&) mutable {
      std::move(done)(std::move(status));
    });
  });
  for (const ClusterWorker& worker : devices_.workers) {
    all->Begin();
    worker.link->CreateWorkerSession(
        request, {timeout, nullptr}, [all, name = worker.name](const auto& response) {
          if (response.ok()) return all->End();
          // Not FromWorker: what is UNAVAILABLE can be tried again, for there is no session yet.
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
  tensorflow::DeleteWorkerSessionRequest request;
  request.set_session_handle(handle_);
  for (int i = 0; i < size(); ++i) {
    if (!CheckAlive(i).ok()) {
      // It may live, and only the coordinator did not hear of it; nobody waits for it.
      worker(i).link->DeleteWorkerSession(request, {limits_.close_timeout, nullptr},
                                          [self = shared_from_this()](const auto&) {});
      continue;
    }
    all->Begin();
    worker(i).link->DeleteWorkerSession(request, {limits_.close_timeout, nullptr},
                                        [all](const auto&) { all->End(); });
  }
  all->End();
}

void SessionWorkers::Cleanup(int64_t step_id, std::vector<int> workers,
                             absl::AnyInvocable<void() &&> done) {
  auto all =
      FanOut::Start([done = std::move(done)](const absl::Status&) mutable { std::move(done)(); });
  for (const int worker : workers) {
    all->Begin();
    CleanupAt(step_id, worker, 1, all);
  }
  all->End();
}

void SessionWorkers::CleanupAt(int64_t step_id, int worker_index, int attempt,
                               std::shared_ptr<FanOut> all) {
  tensorflow::CleanupGraphRequest request;
  request.set_step_id(step_id);
  if (!CheckAlive(worker_index).ok()) {
    worker(worker_index)
        .link->CleanupGraph(request, {limits_.cleanup_timeout, nullptr},
                            [self = shared_from_this()](const auto&) {});
    return all->End();
  }
  worker(worker_index)
      .link->CleanupGraph(
          request, {limits_.cleanup_timeout, nullptr},
          [self = shared_from_this(), step_id, worker_index, attempt, all](const auto& response) {
            if (response.ok() || attempt == kMaxCleanupAttempts) return all->End();
            self->CleanupAt(step_id, worker_index, attempt + 1, all);
          });
}

}  // namespace ferry::master
