// SPDX-License-Identifier: Apache-2.0
// Operations of the simulation's agents as tasks.
#include "tests/coord/simulation_world.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::coord {

void Simulation::DoHeartbeat(TaskId task, Incarnation life) {
  const Task& known = coordinator_->membership().task(task);
  const bool counts = known.state == TaskState::kConnected && known.incarnation == life;
  const int64_t version = coordinator_->membership().version();
  const absl::Status status = coordinator_->Heartbeat(task, life);
  model_->Expect(!counts || status.ok(), "the heartbeat of a connected task was refused");
  if (model_->IsFormer(task, life)) {
    model_->Expect(absl::IsAborted(status), "a heartbeat of an earlier job was not refused");
    model_->Expect(coordinator_->membership().version() == version,
                   "a heartbeat of an earlier job changed a task");
  }
  if (counts) model_->Beaten(task);
}

CallPtr Simulation::NewCall(CallKind kind, TaskId task) {
  auto call = std::make_shared<SimulatedCall>();
  call->kind = kind;
  call->task = task;
  call->life = coordinator_->membership().task(task).incarnation;
  ++report_.calls;
  return call;
}

Simulation::Message Simulation::Register(TaskId task) {
  const bool waits = dice_.Chance(10);
  const bool recoverable = dice_.Chance(5);
  const absl::Duration own =
      dice_.Chance(20) ? absl::Seconds(1 + dice_.Roll(10)) : absl::InfiniteDuration();
  // A process of an earlier job usually exits when it is refused.
  if (model_->IsFormer(task, agents_[task.value()].life) && dice_.Chance(80)) StartAgent(task);
  const SimulatedAgent& agent = agents_[task.value()];
  Registration registration;
  registration.task = task;
  registration.incarnation = agent.life;
  registration.waits_for_all = waits;
  registration.recoverable = recoverable;
  registration.own_timeout = own;
  registration.beats_per_timeout = agent.is_untold ? 2 : 0;
  return [this, task, registration] { DoRegister(task, registration); };
}

void Simulation::DoRegister(TaskId task, const Registration& registration) {
  const Incarnation life = registration.incarnation;
  Log(absl::StrCat("register ", task.value(), " in life ", life.value()));
  CallPtr call = NewCall(CallKind::kRegister, task);
  call->life = life;
  call->deadline = clock_.Now() + registration.own_timeout;
  const bool is_former = model_->IsFormer(task, life);
  const int64_t version = coordinator_->membership().version();
  model_->Opened(call, coordinator_->RegisterTask(registration, StatusDone(call)));
  if (!is_former) return;
  model_->Expect(call->wait == kNoWait, "a registration of an earlier job waits");
  model_->Expect(coordinator_->membership().version() == version,
                 "a registration of an earlier job changed a task");
}

Simulation::Message Simulation::Shutdown(TaskId task) {
  return [this, task] {
    Log(absl::StrCat("shutdown ", task.value()));
    CallPtr call = NewCall(CallKind::kShutdown, task);
    model_->Opened(call, coordinator_->ShutdownTask(task, StatusDone(call)));
  };
}

Simulation::Message Simulation::Reset(TaskId task) {
  const bool always = dice_.Chance(20);
  return [this, task, always] {
    // Mostly tasks that know that they have failed.
    if (!always && coordinator_->membership().task(task).state != TaskState::kError) return;
    Log(absl::StrCat("reset ", task.value()));
    const bool was_there = coordinator_->membership().task(task).state != TaskState::kDisconnected;
    const absl::Status status = coordinator_->ResetTask(task);
    model_->Expect(status.ok() == was_there, "a reset went otherwise than the task's state");
  };
}

Simulation::Message Simulation::Report(TaskId task) {
  return [this, task] {
    Log(absl::StrCat("report of ", task.value()));
    const bool is_connected = coordinator_->membership().task(task).state == TaskState::kConnected;
    const absl::Status status = coordinator_->ReportError(task, absl::InternalError("broken"));
    model_->Expect(status.ok() == is_connected, "a report went otherwise than the task's state");
  };
}

Simulation::Message Simulation::Poll(TaskId task) {
  const bool is_watched = agents_[task.value()].is_untold;
  return [this, task, is_watched] {
    Log(absl::StrCat(is_watched ? "watched poll of " : "poll of ", task.value()));
    CallPtr call = NewCall(CallKind::kPoll, task);
    call->is_watched = is_watched;
    model_->Opened(call, coordinator_->PollForError(task, StatusDone(call), is_watched));
    if (call->wait != kNoWait) model_->Called(task);
  };
}

Simulation::Message Simulation::WaitForAll(TaskId task) {
  return [this, task] {
    Log(absl::StrCat("wait for all of ", task.value()));
    CallPtr call = NewCall(CallKind::kWaitForAll, task);
    const size_t size = agents_.size();
    model_->Opened(call, coordinator_->WaitForAllTasks(
                             task, absl::StrCat("devices of ", task.value()),
                             [this, call, size](absl::StatusOr<Coordinator::DeviceInfos> infos) {
                               model_->Expect(!infos.ok() || (*infos)->size() == size,
                                              "infos are missing");
                               model_->Answered(call, infos.status());
                             }));
  };
}

Simulation::Message Simulation::Watch(TaskId task) {
  const int back = dice_.Roll(4);
  return [this, task, back] {
    CallPtr call = NewCall(CallKind::kWatch, task);
    call->number = std::max<int64_t>(-1, coordinator_->membership().version() - back / 2);
    Log(absl::StrCat("watch of ", task.value(), " from ", call->number));
    model_->Opened(
        call, coordinator_->WatchTasks(call->number, task,
                                       [this, call](absl::StatusOr<Coordinator::TablePtr> table) {
                                         if (table.ok()) call->number_answered = (*table)->version;
                                         model_->Answered(call, table.status());
                                       }));
  };
}

std::vector<TaskId> Simulation::SetWith(TaskId task) {
  std::vector<TaskId> tasks;
  const bool everyone = dice_.Chance(70);
  for (size_t i = 0; i < agents_.size(); ++i) {
    const TaskId other(static_cast<int32_t>(i));
    if (everyone || other == task || i % 2 == 0) tasks.push_back(other);
  }
  return tasks;
}

Simulation::Message Simulation::Alive(TaskId task) {
  return [this, task, tasks = SetWith(task)] {
    Log(absl::StrCat("alive of ", task.value(), " among ", tasks.size()));
    CallPtr call = NewCall(CallKind::kAlive, task);
    call->tasks = tasks;
    model_->Opened(call,
                   coordinator_->GetAliveTasks(
                       task, tasks, [this, call](absl::StatusOr<std::vector<TaskInfo>> infos) {
                         if (infos.ok()) call->infos = *infos;
                         model_->Answered(call, infos.status());
                       }));
  };
}

Simulation::Message Simulation::Enumerate(TaskId task) {
  const absl::Duration timeout = absl::Seconds(1 + dice_.Roll(20));
  LocalTopology local;
  local.node_id = task.value();
  local.host_name = absl::StrCat("host ", agents_[task.value()].life.value() % 2);
  local.boot_id = absl::StrCat("boot ", task.value());
  return [this, task, timeout, local] {
    Log(absl::StrCat("enumerate of ", task.value()));
    CallPtr call = NewCall(CallKind::kEnumerate, task);
    call->deadline = clock_.Now() + timeout;
    const size_t size = agents_.size();
    model_->Opened(call, coordinator_->EnumerateDevices(
                             task, local, timeout,
                             [this, call, size](absl::StatusOr<TopologyExchange::Result> result) {
                               model_->Expect(
                                   !result.ok() || (*result)->topology.nodes().size() == size,
                                   "a topology lacks nodes");
                               model_->Answered(call, result.status());
                             }));
  };
}

Simulation::Message Simulation::Barrier(TaskId task) {
  // "b0" is of the even tasks, the others of all, as in a program without mistakes.
  const bool is_even = task.value() % 2 == 0;
  const std::string id = absl::StrCat("b", is_even ? dice_.Roll(3) : 1 + dice_.Roll(2));
  if (!dice_.Chance(5) && WaitsAt(id, task)) return [] {};
  BarrierArrival arrival;
  arrival.id = id;
  arrival.caller = task;
  if (dice_.Chance(3)) {
    arrival.tasks = SetWith(task);
  } else {
    for (size_t i = 0; i < agents_.size(); ++i) {
      if (id != "b0" || i % 2 == 0) arrival.tasks.push_back(TaskId(static_cast<int32_t>(i)));
    }
  }
  arrival.tasks = Spelled(std::move(arrival.tasks));
  arrival.counter = agents_[task.value()].next_use[id];
  if (dice_.Chance(1)) arrival.counter += dice_.Roll(4) - 2;
  arrival.timeout = dice_.Chance(30) ? absl::InfiniteDuration() : absl::Seconds(1 + dice_.Roll(20));
  const Incarnation life = agents_[task.value()].life;
  return [this, arrival, life] { DoBarrier(arrival, life); };
}

std::vector<TaskId> Simulation::Spelled(std::vector<TaskId> tasks) {
  if (tasks.size() == agents_.size() && dice_.Chance(50)) return {};
  if (dice_.Chance(20)) tasks.push_back(tasks[dice_.Roll(static_cast<int>(tasks.size()))]);
  for (size_t i = tasks.size(); i > 1 && dice_.Chance(70); --i) {
    std::swap(tasks[i - 1], tasks[dice_.Roll(static_cast<int>(i))]);
  }
  return tasks;
}

std::vector<TaskId> Simulation::Meant(const std::vector<TaskId>& tasks) const {
  std::set<TaskId> meant(tasks.begin(), tasks.end());
  for (size_t i = 0; tasks.empty() && i < agents_.size(); ++i) {
    meant.insert(TaskId(static_cast<int32_t>(i)));
  }
  return {meant.begin(), meant.end()};
}

bool Simulation::WaitsAt(const std::string& id, TaskId task) const {
  const std::vector<CallPtr>& calls = model_->open_calls();
  return std::any_of(calls.begin(), calls.end(), [&id, task](const CallPtr& call) {
    return call->kind == CallKind::kBarrier && call->task == task && call->keys[0] == id;
  });
}

void Simulation::DoBarrier(const BarrierArrival& arrival, Incarnation life) {
  const TaskId task = arrival.caller;
  Log(absl::StrCat("barrier ", arrival.id, "::", arrival.counter, " of ", task.value(), " among ",
                   arrival.tasks.size()));
  CallPtr call = NewCall(CallKind::kBarrier, task);
  call->keys = {arrival.id};
  call->tasks = Meant(arrival.tasks);
  call->number = arrival.counter;
  const auto done = [this, call, life](const BarrierResult& result) {
    SimulatedAgent& agent = agents_[call->task.value()];
    // An answer to a previous incarnation does not reach the current one.
    if (agent.life == life) agent.next_use[call->keys[0]] = result.counter + 1;
    call->number_answered = result.counter;
    model_->Answered(call, result.status);
  };
  model_->Opened(call, coordinator_->Barrier(arrival, done));
}

Simulation::Message Simulation::CancelBarrier() {
  const std::string id = absl::StrCat("b", dice_.Roll(3));
  const int64_t counter = agents_[0].next_use[id];
  return [this, id, counter] {
    Log(absl::StrCat("cancel barrier ", id, "::", counter));
    const bool was_open = coordinator_->barriers().IsOpen(id);
    const absl::Status status = coordinator_->CancelBarrier(id, counter);
    model_->Expect(!status.ok() || was_open, "a barrier was cancelled that was not open");
    if (status.ok()) model_->BarrierCancelled(id);
  };
}

}  // namespace ferry::coord
