// SPDX-License-Identifier: Apache-2.0
// The session table and job-wide operations.
#include "tensorflow/master/master.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/boot_id.h"
#include "base/status_macros.h"
#include "tensorflow/graph/names.h"
#include "tensorflow/master/trace_collection.h"

namespace ferry::master {
namespace {

// Longest interval between scans for idle sessions.
constexpr absl::Duration kLongestCollectionPause = absl::Minutes(1);

absl::Status NotFoundHere(absl::string_view handle) {
  return absl::AbortedError(absl::StrCat("Session ", graph::Shown(handle), " is not found."));
}

std::string NotFoundSinceRestart(absl::string_view handle) {
  return absl::StrCat("Session ", graph::Shown(handle),
                      " is not found. Possibly, this master has restarted.");
}

}  // namespace

Master::Master(MasterOptions options, Parts parts)
    : options_(std::move(options)),
      log_(options_.trace_steps),
      wall_ns_(std::move(parts.wall_ns)),
      work_(std::move(parts.run_work), options_.waiting),
      graphs_(options_.max_all_graph_bytes),
      feeds_(options_.max_all_feed_bytes),
      run_looks_(std::move(parts.run_looks)),
      context_{.options = options_,
               .timers = parts.timers,
               .work = work_,
               .graphs = graphs_,
               .feeds = feeds_,
               .random = std::move(parts.random),
               .log = options_.trace_steps > 0 ? &log_ : nullptr},
      cluster_(parts.cluster),
      waits_(parts.timers),
      maker_context_{context_, cluster_, waits_, "/job:ferry_master/replica:0/task:0",
                     static_cast<int64_t>(context_.random() >> 1)},
      recent_ids_(options_.request_id_window) {
  ScheduleCollection();
}

Master::~Master() {
  Timers::Id collection = Timers::kNone;
  {
    absl::MutexLock lock(&mu_);
    collection = collection_;
  }
  context_.timers.Remove(collection);
}

absl::StatusOr<std::shared_ptr<Session>> Master::Find(const std::string& handle) const {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(handle);
  if (found == sessions_.end()) return NotFoundHere(handle);
  return found->second;
}

size_t Master::session_count() const {
  absl::MutexLock lock(&mu_);
  return session_count_;
}

TableSizes Master::InnerTableSizes() const {
  std::vector<std::shared_ptr<Session>> sessions;
  TableSizes sizes;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [handle, session] : sessions_) sessions.push_back(session);
    sizes["master.sessions"] = sessions_.size();
    sizes["master.session_count"] = session_count_;
    sizes["master.closing"] = closing_.size();
  }
  work_.AddTableSizes(sizes);
  sizes["master.steps"] = context_.steps.load();
  sizes["master.graph_bytes"] = graphs_.used();
  sizes["master.feed_bytes"] = feeds_.used();
  for (const auto& session : sessions) {
    for (const auto& [name, size] : session->InnerTableSizes()) sizes[name] += size;
  }
  return sizes;
}

void Master::GetSteps(Ref<ferry::v1::GetStepsRequest> request, Gone gone,
                      Done<ferry::v1::GetStepsResponse> done) {
  TraceCollection::Context context;
  context.now = [&timers = context_.timers] { return timers.Now(); };
  context.wall_ns = wall_ns_;
  context.host = options_.host;
  context.boot_id = BootId();
  context.kept = log_.max_steps();
  const auto count = static_cast<size_t>(std::max(0, request->count()));
  std::make_shared<TraceCollection>(std::move(context), log_.Last(count), std::move(done))
      ->Start(cluster_.Now(), gone);
}

void Master::CreateSession(Ref<tensorflow::CreateSessionRequest> request, Gone gone,
                           Done<tensorflow::CreateSessionResponse> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (is_stopped_) {
      status = absl::UnavailableError("The master is stopping.");
    } else if (session_count_ >= options_.max_sessions) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "The master has --max-sessions (", options_.max_sessions, ") sessions: close some"));
    } else {
      ++session_count_;
    }
  }
  if (!status.ok()) return std::move(done)(std::move(status));
  std::make_shared<SessionMaker>(maker_context_, std::move(request), gone,
                                 [this, gone, done = std::move(done)](
                                     absl::StatusOr<std::shared_ptr<Session>> session) mutable {
                                   FinishCreate(std::move(session), gone, std::move(done));
                                 })
      ->Start();
}

void Master::FinishCreate(absl::StatusOr<std::shared_ptr<Session>> session, const Gone& gone,
                          Done<tensorflow::CreateSessionResponse> done) {
  // The client would never learn the handle, so nothing would close the session.
  absl::Status unwanted;
  if (gone != nullptr && gone->is_cancelled()) {
    unwanted = absl::CancelledError("The client has gone.");
  }
  {
    absl::MutexLock lock(&mu_);
    if (is_stopped_) unwanted = absl::UnavailableError("The master is stopping.");
    if (session.ok() && unwanted.ok()) {
      sessions_.emplace((*session)->handle(), *session);
    } else {
      --session_count_;
    }
  }
  if (!session.ok()) return std::move(done)(session.status());
  if (!unwanted.ok()) {
    return (*session)->Close(absl::CancelledError(unwanted.message()),
                             [session = *session, unwanted, done = std::move(done)]() mutable {
                               std::move(done)(std::move(unwanted));
                             });
  }
  // A worker may have been lost before the session was in the table.
  ClusterChanged();
  tensorflow::CreateSessionResponse response;
  response.set_session_handle((*session)->handle());
  std::move(done)(std::move(response));
}

void Master::ExtendSession(Ref<tensorflow::ExtendSessionRequest> request, Gone,
                           Done<tensorflow::ExtendSessionResponse> done) {
  const auto session = Find(request->session_handle());
  if (!session.ok()) return std::move(done)(session.status());
  (*session)->Extend(std::move(request), std::move(done));
}

void Master::PartialRunSetup(Ref<tensorflow::PartialRunSetupRequest> request, Gone,
                             Done<tensorflow::PartialRunSetupResponse> done) {
  absl::Status unique = recent_ids_.TrackUnique(request->request_id(), "PartialRunSetup (Master)");
  if (!unique.ok()) return std::move(done)(std::move(unique));
  const auto session = Find(request->session_handle());
  if (!session.ok()) return std::move(done)(session.status());
  (*session)->PartialRunSetup(std::move(request), std::move(done));
}

void Master::RunStep(Ref<tensorflow::RunStepRequest> request, Gone gone,
                     Done<tensorflow::RunStepResponse> done) {
  if (request->store_errors_in_response_body()) {
    done = [done = std::move(done)](absl::StatusOr<tensorflow::RunStepResponse> result) mutable {
      if (result.ok()) return std::move(done)(std::move(result));
      tensorflow::RunStepResponse response;
      response.set_status_code(static_cast<tensorflow::error::Code>(result.status().code()));
      response.set_status_error_message(std::string(result.status().message()));
      std::move(done)(std::move(response));
    };
  }
  absl::Status unique = recent_ids_.TrackUnique(request->request_id(), "RunStep (Master)");
  if (!unique.ok()) return std::move(done)(std::move(unique));
  const auto session = Find(request->session_handle());
  if (!session.ok()) return std::move(done)(session.status());
  (*session)->RunStep(std::move(request), std::move(gone), std::move(done));
}

void Master::MakeCallable(Ref<tensorflow::MakeCallableRequest> request, Gone,
                          Done<tensorflow::MakeCallableResponse> done) {
  absl::Status unique = recent_ids_.TrackUnique(request->request_id(), "MakeCallable (Master)");
  if (!unique.ok()) return std::move(done)(std::move(unique));
  const auto session = Find(request->session_handle());
  if (!session.ok()) return std::move(done)(session.status());
  (*session)->MakeCallable(std::move(request), std::move(done));
}

void Master::RunCallable(Ref<tensorflow::RunCallableRequest> request, Gone gone,
                         Done<tensorflow::RunCallableResponse> done) {
  absl::Status unique = recent_ids_.TrackUnique(request->request_id(), "RunCallable (Master)");
  if (!unique.ok()) return std::move(done)(std::move(unique));
  const auto session = Find(request->session_handle());
  if (!session.ok()) return std::move(done)(session.status());
  (*session)->RunCallable(std::move(request), std::move(gone), std::move(done));
}

void Master::ReleaseCallable(Ref<tensorflow::ReleaseCallableRequest> request, Gone,
                             Done<tensorflow::ReleaseCallableResponse> done) {
  const auto session = Find(request->session_handle());
  if (!session.ok()) return std::move(done)(session.status());
  (*session)->ReleaseCallable(request->handle());
  std::move(done)(tensorflow::ReleaseCallableResponse());
}

void Master::CloseSession(Ref<tensorflow::CloseSessionRequest> request, Gone,
                          Done<tensorflow::CloseSessionResponse> done) {
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mu_);
    const auto found = sessions_.find(request->session_handle());
    if (found != sessions_.end()) {
      session = found->second;
      TakeOut(found);
    }
  }
  if (session == nullptr) {
    return std::move(done)(absl::AbortedError(NotFoundSinceRestart(request->session_handle())));
  }
  Close(
      session,
      absl::CancelledError("Step was cancelled by an explicit call to `Session::Close()`."),
      [done = std::move(done)]() mutable { std::move(done)(tensorflow::CloseSessionResponse()); });
}

void Master::ListDevices(Ref<tensorflow::ListDevicesRequest> request, Gone gone,
                         Done<tensorflow::ListDevicesResponse> done) {
  if (!request->session_handle().empty()) {
    const auto session = Find(request->session_handle());
    if (!session.ok()) {
      return std::move(done)(
          absl::InvalidArgumentError(NotFoundSinceRestart(request->session_handle())));
    }
    return std::move(done)((*session)->ListDevices());
  }
  const absl::Duration timeout = options_.worker_timeout;
  work_.Add(0, [this, gone = std::move(gone), timeout,
                done = std::move(done)](absl::Status status) mutable {
    if (!status.ok()) return std::move(done)(std::move(status));
    waits_.Await({{}, context_.timers.Now() + timeout, timeout, "ListDevices", std::move(gone)},
                 cluster_, [done = std::move(done)](absl::StatusOr<Cluster> cluster) mutable {
                   if (!cluster.ok()) return std::move(done)(cluster.status());
                   tensorflow::ListDevicesResponse response;
                   for (size_t i = 0; i < cluster->workers.size(); ++i) {
                     for (tensorflow::DeviceAttributes& device : cluster->workers[i].devices) {
                       *(i == 0 ? response.add_local_device() : response.add_remote_device()) =
                           std::move(device);
                     }
                   }
                   std::move(done)(std::move(response));
                 });
  });
}

void Master::TakeOut(Sessions::iterator entry) {
  closing_[entry->first];
  sessions_.erase(entry);
  --session_count_;
}

Master::Sessions Master::TakeAll() {
  for (const auto& [handle, session] : sessions_) closing_[handle];
  session_count_ -= sessions_.size();
  return std::exchange(sessions_, {});
}

void Master::Close(const std::shared_ptr<Session>& session, const absl::Status& why,
                   absl::AnyInvocable<void() &&> done) {
  session->Close(why, [this, session, done = std::move(done)]() mutable {
    std::vector<std::shared_ptr<FanOut>> waiting;
    {
      absl::MutexLock lock(&mu_);
      waiting = std::move(closing_.extract(session->handle()).mapped());
    }
    std::move(done)();
    for (const auto& all : waiting) all->End();
  });
}

void Master::CloseAll(const Sessions& sessions, const absl::Status& why,
                      absl::AnyInvocable<void() &&> done) {
  auto all =
      FanOut::Start([done = std::move(done)](const absl::Status&) mutable { std::move(done)(); });
  {
    absl::MutexLock lock(&mu_);
    for (auto& [handle, waiting] : closing_) {
      all->Begin();
      waiting.push_back(all);
    }
  }
  for (const auto& [handle, session] : sessions) Close(session, why, [] {});
  all->End();
}

void Master::Reset(Ref<tensorflow::ResetRequest> request, Gone,
                   Done<tensorflow::ResetResponse> done) {
  absl::StatusOr<DeviceFilters> filters = DeviceFilters::Create(request->device_filters());
  if (!filters.ok()) return std::move(done)(filters.status());
  Sessions sessions;
  {
    absl::MutexLock lock(&mu_);
    sessions = TakeAll();
  }
  CloseAll(sessions, absl::CancelledError("Step was cancelled by `Session::Reset()`."),
           [this, request, filters = *std::move(filters), done = std::move(done)]() mutable {
             work_.Add(
                 0, [this, request, filters, done = std::move(done)](absl::Status status) mutable {
                   if (!status.ok()) return std::move(done)(std::move(status));
                   CleanupWorkers(*request, filters, std::move(done));
                 });
           });
}

void Master::CleanupWorkers(const tensorflow::ResetRequest& request, const DeviceFilters& filters,
                            Done<tensorflow::ResetResponse> done) {
  tensorflow::CleanupAllRequest cleanup;
  *cleanup.mutable_container() = request.container();
  auto all = FanOut::Start([done = std::move(done)](absl::Status status) mutable {
    if (!status.ok()) return std::move(done)(std::move(status));
    std::move(done)(tensorflow::ResetResponse());
  });
  for (const ClusterWorker& worker : cluster_.Now().workers) {
    if (!filters.Matches(worker.task)) continue;
    all->Begin();
    worker.link->CleanupAll(cleanup, {options_.calls.cleanup_timeout, nullptr},
                            [all, name = worker.name, link = worker.link](const auto& response) {
                              // A lost worker has no variables to clean up.
                              if (absl::IsUnavailable(response.status())) return all->End();
                              all->End(FromWorker(name, "Reset", response.status()));
                            });
  }
  all->End();
}

void Master::ClusterChanged() {
  if (is_looking_.exchange(true)) return;
  run_looks_([this] {
    is_looking_ = false;
    LookAtCluster();
  });
}

void Master::LookAtCluster() {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [handle, session] : sessions_) sessions.push_back(session);
  }
  if (sessions.empty() && waits_.empty()) return;
  const Cluster cluster = cluster_.Now();
  for (const auto& session : sessions) session->NoteCluster(cluster);
  waits_.Look(cluster);
}

void Master::ScheduleCollection() {
  const absl::Duration idle = options_.session_idle_timeout;
  if (idle == absl::InfiniteDuration()) return;
  const Timers::Id id = context_.timers.AddAfter(std::min(idle / 4, kLongestCollectionPause),
                                                 [this] { CollectIdle(); });
  absl::MutexLock lock(&mu_);
  collection_ = id;
}

void Master::CollectIdle() {
  Sessions idle;
  {
    absl::MutexLock lock(&mu_);
    if (is_stopped_) return;
    const absl::Time limit = context_.timers.Now() - options_.session_idle_timeout;
    for (auto entry = sessions_.begin(); entry != sessions_.end();) {
      const std::optional<absl::Time> since = entry->second->idle_since();
      const auto next = std::next(entry);
      if (since && *since <= limit) {
        idle.insert(*entry);
        TakeOut(entry);
      }
      entry = next;
    }
  }
  CloseAll(idle,
           absl::CancelledError("Step was cancelled because the session was garbage collected due "
                                "to inactivity."),
           [] {});
  ScheduleCollection();
}

void Master::Stop(absl::AnyInvocable<void() &&> done) {
  Sessions sessions;
  {
    absl::MutexLock lock(&mu_);
    is_stopped_ = true;
    sessions = TakeAll();
  }
  waits_.Fail(absl::UnavailableError("The master is stopping."));
  CloseAll(sessions, absl::CancelledError("The master is stopping."), std::move(done));
}

}  // namespace ferry::master
