// SPDX-License-Identifier: Apache-2.0
// The simulation of several workers: their steps and faults.
#include "tests/rendezvous/simulation_workers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ferry::simulation {

using absl::StatusCode;

WorkersSimulation::WorkersSimulation(uint64_t seed, int64_t events)
    : dice_(seed),
      events_(events),
      network_(ledger_, dice_,
               {.serve = [this](const CallPtr& call) { Serve(call); },
                .call_off = [this](const CallPtr& call) { Cancel(call->cancellation); },
                .while_issuing = [this](const CallPtr& call) { WhileIssuing(call); }}) {
  Start();
}

Report WorkersSimulation::Run() {
  while (ledger_.report().events < events_ && !ledger_.is_violated()) {
    ++ledger_.report().events;
    DoEvent();
    Check();
  }
  if (!ledger_.is_violated()) Stop();
  may_nest_ = false;
  return ledger_.Finish();
}

// --- The world

void WorkersSimulation::Start() {
  options_ = {};
  if (dice_.Chance(20)) options_.limits.max_pending_ops = 1 + static_cast<size_t>(dice_.Roll(10));
  if (dice_.Chance(20)) options_.limits.max_queued_bytes = static_cast<size_t>(dice_.Roll(400));
  if (dice_.Chance(20)) options_.max_steps = 1 + static_cast<size_t>(dice_.Roll(4));
  if (dice_.Chance(20)) options_.max_finished_steps = 1 + static_cast<size_t>(dice_.Roll(4));
  edge_count_ = 1 + dice_.Roll(4);
  workers_.clear();
  workers_.resize(1 + static_cast<size_t>(dice_.Roll(4)));
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].name = {"worker", 0, static_cast<int64_t>(i)};
    workers_[i].fetcher = network_.FetcherOf(static_cast<int>(i));
    StartWorker(workers_[i]);
  }
  step_ids_.resize(3);
  for (int64_t& step_id : step_ids_) step_id = ++last_step_id_;
  cancellations_.resize(3);
  for (auto& each : cancellations_) each = std::make_shared<CancellationToken>();
  Log(absl::StrCat("start with ", workers_.size(), " workers"));
}

void WorkersSimulation::StartWorker(Worker& worker) {
  worker.steps.clear();
  worker.finished.clear();
  worker.manager = std::make_unique<RendezvousManager>(clock_, *worker.fetcher, options_);
}

void WorkersSimulation::Stop() {
  Log("stop");
  may_nest_ = false;
  std::vector<std::weak_ptr<RemoteRendezvous>> steps;
  for (Worker& worker : workers_) {
    for (const auto& [step_id, model] : worker.steps)
      steps.push_back(*worker.manager->Find(step_id));
    for (const Step& step : worker.old_steps) steps.push_back(step.real);
    CleanupAll(worker);
    worker.old_steps.clear();
  }
  // Workers that have ended are still answered, or the caller is notified that they have.
  for (Worker& worker : workers_) {
    if (dice_.Chance(50)) continue;
    network_.CloseConnectionsOf(IndexOf(worker));
    worker.manager.reset();
  }
  while (!ledger_.is_violated() && network_.Deliver()) {
    for (Worker& worker : workers_) {
      if (worker.manager != nullptr) CleanupAll(worker);
      may_nest_ = false;
    }
  }
  may_nest_ = true;
  news_.clear();
  ledger_.CheckSettled();
  network_.Check();
  ledger_.Expect(ledger_.open_receives() == 0, "receives outlived their workers");
  ledger_.Expect(ledger_.live_buffers() == 0, "tensors outlived their workers");
  for (const auto& step : steps) ledger_.Expect(step.expired(), "a step outlived its users");
  for (const auto& each : cancellations_) {
    ledger_.Expect(each->registered_count() == 0, "a cancellation is still watched");
  }
  for (const Worker& worker : workers_) {
    if (worker.manager == nullptr) continue;
    const std::string left =
        NonEmptyTables(worker.manager->InnerTableSizes(), {"manager.finished"});
    ledger_.Expect(left.empty(), absl::StrCat("a worker without steps has ", left));
  }
}

void WorkersSimulation::DoEvent() {
  const int roll = dice_.Roll(1000);
  Worker& worker = AnyWorker();
  if (roll < 10) return Begin(worker);
  if (roll < 12) return Abort(worker);
  if (roll < 24) return Cleanup(worker);
  if (roll < 25) return CleanupAll(worker);
  if (roll < 28) return Die(worker);
  if (roll < 40) return HearOfDeath();
  if (roll < 70) return MoveClock();
  if (roll < 85) {
    auto& cancellation = cancellations_[static_cast<size_t>(dice_.Roll(3))];
    Cancel(cancellation);
    if (dice_.Chance(60)) cancellation = std::make_shared<CancellationToken>();
    return;
  }
  if (roll < 100) return CheckPending(worker);
  if (roll < 101) {
    Stop();
    return ledger_.is_violated() ? void() : Start();
  }
  if (roll < 320) return Send(worker);
  if (roll < 540) return Recv(worker);
  if (roll < 600) return RecvLocal(worker);
  network_.Deliver();
}

void WorkersSimulation::Check() {
  ledger_.CheckSettled();
  network_.Check();
  int64_t tensors = network_.carried_tensors();
  for (Worker& worker : workers_) {
    ledger_.Expect(worker.manager->step_count() == worker.steps.size(),
                   "the count of steps is wrong");
    for (const auto& [step_id, model] : worker.steps) tensors += model->table.queued_tensors();
    for (const Step& step : worker.old_steps) {
      ledger_.Expect(step.real->fetch_count() == step.model->fetch_count(),
                     "the count of fetches of an old step is wrong");
    }
    if (ledger_.report().events % 16 != 0) continue;
    TableSizes sizes = worker.manager->InnerTableSizes();
    ledger_.Expect(sizes["fetches.listed"] == sizes["fetches.waiting"],
                   "a fetch is lost, or not counted");
    ledger_.Expect(sizes["table.chained"] == sizes["table.items"],
                   "an item is lost, or not counted");
    ledger_.Expect(sizes["manager.finished"] == sizes["manager.finished_order"],
                   "the finished steps and their order differ");
    ledger_.Expect(sizes["manager.finished"] <= options_.max_finished_steps,
                   "too many finished steps are remembered");
    for (const Step& step : worker.old_steps) {
      const std::string left = NonEmptyTables(step.real->InnerTableSizes());
      ledger_.Expect(left.empty(), absl::StrCat("a step that is over has ", left));
    }
  }
  ledger_.Expect(ledger_.live_buffers() == tensors, "a tensor leaked, or died");
}

void WorkersSimulation::CheckPending(const Worker& worker) {
  constexpr const char* kSides[] = {"send", "recv", "fetch", "deferred"};
  PendingLines expected;
  absl::Time first = absl::InfiniteFuture();
  for (const auto& [step_id, model] : worker.steps) {
    model->AddPending(clock_.Now(), expected);
    first = std::min(first, model->FirstDeadline());
  }
  PendingLines actual;
  worker.manager->ForEachPending(-absl::InfiniteDuration(), [&](const PendingStepOp& op) {
    actual.push_back(PendingLine(absl::StrCat(op.step_id), op.key,
                                 kSides[static_cast<int>(op.side)], op.bytes, op.age));
  });
  std::sort(expected.begin(), expected.end());
  std::sort(actual.begin(), actual.end());
  ledger_.Expect(expected == actual, "the list of what waits is wrong");
  ledger_.Expect(worker.manager->NextDeadline() <= first, "a deadline is kept too late");
}

// --- Steps

Outcome WorkersSimulation::FindModel(Worker& worker, int64_t step_id) {
  if (worker.steps.contains(step_id)) return {};
  if (std::find(worker.finished.begin(), worker.finished.end(), step_id) != worker.finished.end()) {
    return Error(StatusCode::kAborted, "is over");
  }
  if (worker.steps.size() >= options_.max_steps) {
    return Error(StatusCode::kResourceExhausted, "--max-steps");
  }
  worker.steps.emplace(step_id, std::make_shared<StepModel>(ledger_, step_id, options_.limits));
  return {};
}

Step WorkersSimulation::Find(Worker& worker, int64_t step_id) {
  const Outcome expected = FindModel(worker, step_id);
  auto found = worker.manager->Find(step_id);
  ledger_.ExpectStatus(found.status(), expected, "finding a step");
  if (!found.ok() || ledger_.is_violated()) return {};
  return {*std::move(found), worker.steps.at(step_id)};
}

Step WorkersSimulation::AnyStep(Worker& worker) {
  if (!worker.old_steps.empty() && dice_.Chance(10)) return dice_.Pick(worker.old_steps);
  Step step = Find(worker, dice_.Pick(step_ids_));
  // Mostly a worker has begun the steps in which it sends and receives.
  if (step.real != nullptr && dice_.Chance(70)) {
    Initialize(step, worker.name);
  }
  return step;
}

void WorkersSimulation::Begin(Worker& worker) {
  const Step step = Find(worker, dice_.Pick(step_ids_));
  if (step.real == nullptr) return;
  const TaskName name = dice_.Chance(20) ? AnyWorker().name : worker.name;
  Log(absl::StrCat(IndexOf(worker), " begins step ", step.real->step_id(), " as ", ToString(name)));
  Initialize(step, name);
}

void WorkersSimulation::Initialize(const Step& step, const TaskName& name) {
  const bool could_nest = std::exchange(may_nest_, false);
  const Outcome expected = step.model->Initialize(name, clock_.Now());
  ledger_.ExpectStatus(step.real->Initialize(name), expected, "beginning a step");
  may_nest_ = could_nest;
}

void WorkersSimulation::Abort(Worker& worker) {
  const Step step = AnyStep(worker);
  if (step.real == nullptr) return;
  Log(absl::StrCat(IndexOf(worker), " aborts step ", step.real->step_id()));
  may_nest_ = false;
  const bool is_cause = dice_.Chance(50);
  step.model->Abort(Error(is_cause ? StatusCode::kInternal : StatusCode::kAborted, "aborted"));
  step.real->StartAbort(is_cause ? absl::InternalError("aborted") : absl::AbortedError("aborted"));
  may_nest_ = true;
}

void WorkersSimulation::MarkFinished(Worker& worker, int64_t step_id) {
  auto& finished = worker.finished;
  if (std::find(finished.begin(), finished.end(), step_id) != finished.end()) return;
  finished.push_back(step_id);
  if (finished.size() > options_.max_finished_steps) finished.pop_front();
}

void WorkersSimulation::Cleanup(Worker& worker) {
  int64_t& chosen = step_ids_[static_cast<size_t>(dice_.Roll(3))];
  const int64_t step_id = chosen;
  Log(absl::StrCat(IndexOf(worker), " cleans step ", step_id, " up"));
  may_nest_ = false;
  MarkFinished(worker, step_id);
  if (const auto found = worker.steps.find(step_id); found != worker.steps.end()) {
    const std::shared_ptr<StepModel> model = found->second;
    if (dice_.Chance(30)) worker.old_steps.push_back({*worker.manager->Find(step_id), model});
    if (worker.old_steps.size() > 3) worker.old_steps.erase(worker.old_steps.begin());
    worker.steps.erase(found);
    model->Abort(Error(StatusCode::kAborted, absl::StrCat("Cleanup ", step_id)));
  }
  worker.manager->Cleanup(step_id);
  may_nest_ = true;
  // The others may be notified of its end later.
  if (dice_.Chance(40)) chosen = ++last_step_id_;
}

void WorkersSimulation::CleanupAll(Worker& worker) {
  may_nest_ = false;
  const auto steps = std::exchange(worker.steps, {});
  for (const auto& [step_id, model] : steps) {
    MarkFinished(worker, step_id);
    model->Abort(Error(StatusCode::kAborted, "Shutdown"));
  }
  worker.manager->CleanupAll();
  // The manager chooses the order in which these are forgotten, to make room.
  for (size_t i = 0; options_.max_finished_steps < 100 && i < options_.max_finished_steps; ++i) {
    worker.manager->Cleanup(++last_step_id_);
    MarkFinished(worker, last_step_id_);
  }
  may_nest_ = true;
}

}  // namespace ferry::simulation
