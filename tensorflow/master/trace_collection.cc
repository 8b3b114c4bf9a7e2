// SPDX-License-Identifier: Apache-2.0
// One chain of calls per worker.
#include "tensorflow/master/trace_collection.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::master {
namespace {

constexpr int kClockTrips = 5;
constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

TraceCollection::TraceCollection(Context context, std::vector<LoggedStep> steps, Done done)
    : context_(std::move(context)), steps_(std::move(steps)), done_(std::move(done)) {
  for (const LoggedStep& step : steps_) wanted_.add_step_ids(static_cast<uint64_t>(step.step_id));
}

void TraceCollection::FillMaster() {
  ferry::v1::TraceProcess& process = *response_.add_processes();
  process.set_name("master");
  process.set_host(context_.host);
  process.set_boot_id(context_.boot_id);
  process.set_kept(static_cast<uint32_t>(context_.kept));
  const int64_t wall_ns = context_.wall_ns();
  process.set_now_ns(wall_ns);
  const absl::Time now = context_.now();
  const auto wall_of = [&](absl::Time time) {
    return wall_ns - absl::ToInt64Nanoseconds(now - time);
  };
  for (const LoggedStep& each : steps_) {
    ferry::v1::TraceStep& step = *process.add_steps();
    step.set_step_id(static_cast<uint64_t>(each.step_id));
    step.set_start_ns(wall_of(each.start));
    step.set_end_ns(wall_of(each.end));
    step.set_code(static_cast<int>(each.code));
    for (const LoggedStep::Call& call : each.calls) {
      ferry::v1::TraceCall& row = *step.add_calls();
      row.set_worker(call.worker);
      row.set_start_ns(wall_of(call.start));
      row.set_end_ns(wall_of(call.end));
    }
  }
}

void TraceCollection::Start(const Cluster& cluster,
                            const std::shared_ptr<CancellationToken>& gone) {
  gone_ = gone;
  FillMaster();
  for (const ClusterWorker& worker : cluster.workers) {
    Worker& asked = workers_.emplace_back();
    asked.link = worker.link;
    asked.process = response_.add_processes();
    asked.process->set_name(worker.name);
  }
  for (const MissingWorker& worker : cluster.missing) {
    ferry::v1::TraceProcess& process = *response_.add_processes();
    process.set_name(worker.name);
    process.set_missing(worker.why);
  }
  auto all = FanOut::Start([self = shared_from_this()](const absl::Status&) {
    std::move(self->done_)(std::move(self->response_));
  });
  for (size_t i = 0; i < workers_.size(); ++i) {
    all->Begin();
    AskClock(i, all);
  }
  all->End();
}

void TraceCollection::AskClock(size_t index, std::shared_ptr<FanOut> all) {
  const int64_t asked_ns = context_.wall_ns();
  workers_[index].link->GetSteps(
      ferry::v1::GetStepsRequest(), {kTimeout, gone_},
      [self = shared_from_this(), index, asked_ns,
       all = std::move(all)](absl::StatusOr<ferry::v1::GetStepsResponse> response) mutable {
        const int64_t trip_ns = self->context_.wall_ns() - asked_ns;
        Worker& worker = self->workers_[index];
        if (!response.ok() || response->processes_size() != 1) {
          worker.process->set_missing(absl::StrCat(
              "does not tell: ", response.ok() ? "an empty answer" : response.status().message()));
          return all->End();
        }
        if (trip_ns >= 0 && trip_ns < worker.best_trip_ns) {
          worker.best_trip_ns = trip_ns;
          worker.offset_ns = asked_ns + trip_ns / 2 - response->processes(0).now_ns();
        }
        if (++worker.trips < kClockTrips) return self->AskClock(index, std::move(all));
        self->AskSteps(index, std::move(all));
      });
}

void TraceCollection::AskSteps(size_t index, std::shared_ptr<FanOut> all) {
  workers_[index].link->GetSteps(
      wanted_, {kTimeout, gone_},
      [self = shared_from_this(), index,
       all = std::move(all)](absl::StatusOr<ferry::v1::GetStepsResponse> response) {
        Worker& worker = self->workers_[index];
        if (!response.ok() || response->processes_size() != 1) {
          worker.process->set_missing(absl::StrCat(
              "does not tell: ", response.ok() ? "an empty answer" : response.status().message()));
          return all->End();
        }
        // Use the master's name for the worker, not the one it reports.
        response->mutable_processes(0)->set_name(worker.process->name());
        worker.process->Swap(response->mutable_processes(0));
        self->SetOffset(worker, *worker.process);
        all->End();
      });
}

void TraceCollection::SetOffset(Worker& worker, const ferry::v1::TraceProcess& process) const {
  const bool is_same = !context_.boot_id.empty() && process.boot_id() == context_.boot_id;
  worker.process->set_offset_ns(is_same ? 0 : worker.offset_ns);
  worker.process->set_error_ns(is_same ? 0 : static_cast<uint64_t>(worker.best_trip_ns / 2));
}

}  // namespace ferry::master
