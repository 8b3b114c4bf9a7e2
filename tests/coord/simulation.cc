// SPDX-License-Identifier: Apache-2.0
// The bad luck of the simulation: lost, late and repeated messages, clocks, restarts.
#include "tests/coord/simulation_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry::coord {
namespace {

constexpr size_t kMaxOpenCalls = 48;
constexpr size_t kMaxLateMessages = 20;
constexpr size_t kTraceLines = 40;

}  // namespace

SimulationReport Simulation::Run() {
  for (int64_t i = 0; i < events_ && model_->violation().empty(); ++i) {
    ++report_.events;
    DoEvent();
  }
  if (model_->violation().empty()) Stop();
  Account();
  if (!model_->violation().empty()) {
    report_.violation = absl::StrCat(model_->violation(), "\nafter event ", report_.events,
                                     ", the last of which were:\n", absl::StrJoin(trace_, "\n"));
  }
  return report_;
}

void Simulation::Start() {
  CoordinatorOptions options;
  const int tasks = 1 + dice_.Roll(6);
  options.jobs = {{"worker", tasks}};
  if (tasks > 1 && dice_.Chance(30)) options.jobs = {{"worker", tasks - 1}, {"ps", 1}};
  options.register_barrier = dice_.Chance(50);
  options.register_timeout = absl::Seconds(5 + dice_.Roll(60));
  options.heartbeat_timeout = absl::Seconds(10);
  options.shutdown_timeout = dice_.Chance(50) ? absl::ZeroDuration() : absl::Seconds(5);
  options.recoverable = dice_.Chance(40);
  options.reuse = dice_.Chance(70);
  options.heartbeat_timeout_is_limit = dice_.Chance(50);
  if (dice_.Chance(20)) options.max_keys = 8;
  if (dice_.Chance(20)) options.max_store_bytes = 80;
  if (dice_.Chance(10)) options.max_pending_gets = 5;
  is_store_small_ = options.max_keys < 100 || options.max_store_bytes < 1000;
  coordinator_ = *Coordinator::Create(std::move(options), clock_, dice_.Word());
  model_ = std::make_unique<SimulationModel>(*coordinator_, clock_);
  agents_.resize(tasks);
  for (int i = 0; i < tasks; ++i) StartAgent(TaskId(i));
  Log(absl::StrCat("start with ", tasks, " tasks"));
}

void Simulation::Stop() {
  Log("stop");
  model_->Enter();
  coordinator_->Stop();
  model_->Leave();
  model_->CheckStopped();
}

void Simulation::Account() {
  report_.barriers_passed += model_->barriers_passed();
  report_.deaths += model_->deaths();
  report_.jobs += coordinator_->epoch();
}

void Simulation::DoEvent() {
  const int roll = dice_.Roll(1000);
  if (roll < 200) return Beat();
  if (roll < 260) return MoveClock(absl::Milliseconds(dice_.Roll(2500)));
  if (roll < 264) return MoveClock(absl::Seconds(dice_.Roll(25)));
  if (roll < 267) return MoveClock(absl::Seconds(-dice_.Roll(8)));
  if (roll < 275) return Restart();
  if (roll < 307) return CancelSomething();
  if (roll < 311) return EndConnection();
  if (roll < 314) return CallLate();
  if (roll < 315) return EndJob();
  if (roll < 355) return DeliverLate();
  if (roll < 356) return StopAndStart();
  Send(MakeMessage(roll));
}

Simulation::Message Simulation::MakeMessage(int roll) {
  const TaskId task(dice_.Roll(static_cast<int>(agents_.size())));
  if (roll < 420) return Register(task);
  if (roll < 426) return Shutdown(task);
  if (roll < 440) return Reset(task);
  if (roll < 443) return Report(task);
  if (roll < 480) return Poll(task);
  if (roll < 490) return WaitForAll(task);
  if (roll < 530) return Watch(task);
  if (roll < 570) return Alive(task);
  if (roll < 590) return Enumerate(task);
  if (roll < 740) return Barrier(task);
  if (roll < 745) return CancelBarrier();
  if (roll < 830) return Put();
  if (roll < 905) return Get(task);
  if (roll < 940) return Delete();
  if (roll < 965) return Increment();
  if (roll < 990) return CompareAndSet();
  return [this] {
    Log("switch the store watch");
    model_->SwitchStoreWatch();
  };
}

void Simulation::Send(Message message) {
  const int luck = dice_.Roll(100);
  if (luck < 3) return;
  if (luck < 8 && late_.size() < kMaxLateMessages) {
    late_.push_back(std::move(message));
    return;
  }
  Deliver(message);
  if (luck > 96) Deliver(message);
}

void Simulation::Deliver(const Message& message) {
  // Clients that send without end are cut off by their own limits.
  while (model_->open_calls().size() >= kMaxOpenCalls) CancelCall(model_->open_calls()[0]);
  model_->Enter();
  message();
  model_->Leave();
  model_->Check(/*advanced=*/false);
}

void Simulation::DeliverLate() {
  if (late_.empty()) return;
  const int which = dice_.Roll(static_cast<int>(late_.size()));
  const Message message = std::move(late_[which]);
  late_.erase(late_.begin() + which);
  Deliver(message);
}

void Simulation::MoveClock(absl::Duration by) {
  Log(absl::StrCat("clock ", absl::FormatDuration(by)));
  clock_.Advance(by);
  model_->Enter();
  coordinator_->Advance();
  model_->Leave();
  model_->Check(/*advanced=*/true);
}

void Simulation::Restart() {
  const TaskId task(dice_.Roll(static_cast<int>(agents_.size())));
  Log(absl::StrCat("task ", task.value(), " restarts"));
  StartAgent(task);
  if (dice_.Chance(30)) return;
  const std::vector<CallPtr> calls = model_->open_calls();
  for (const CallPtr& call : calls) {
    if (call->task == task && !call->answered) CancelCall(call);
  }
}

void Simulation::StartAgent(TaskId task) {
  SimulatedAgent& agent = agents_[task.value()];
  agent = {NewLife(), {}, dice_.Chance(40)};
  if (agent.is_untold) model_->NoteUntold(agent.life);
}

void Simulation::EndConnection() {
  std::vector<CallPtr> polls;
  for (const CallPtr& call : model_->open_calls()) {
    if (call->is_watched) polls.push_back(call);
  }
  if (polls.empty()) return;
  const CallPtr poll = dice_.Pick(polls);
  // The process may have ended, or may reconnect.
  if (dice_.Chance(50)) StartAgent(poll->task);
  CancelCall(poll);
  Log(absl::StrCat("the connection of ", poll->task.value(), " ends"));
  model_->Enter();
  coordinator_->NoteConnectionEnd(poll->task);
  model_->Leave();
  model_->ConnectionEnded(poll->task);
  model_->Check(/*advanced=*/false);
}

void Simulation::CallLate() {
  if (model_->former_incarnations().empty()) return;
  const auto [task, life] = dice_.Pick(model_->former_incarnations());
  const bool beats = dice_.Chance(50);
  Deliver([this, beats, task = task, life = life] {
    if (beats) return DoHeartbeat(task, life);
    DoRegister(task, {.task = task, .incarnation = life});
  });
}

void Simulation::EndJob() {
  const bool force = dice_.Chance(30);
  Log(absl::StrCat("end the job", force ? " by force" : ""));
  const bool is_well = coordinator_->job_error().ok() &&
                       coordinator_->membership().error_count() == 0 &&
                       coordinator_->membership().connected_count() > 0;
  const int64_t epoch = coordinator_->epoch();
  model_->Enter();
  const absl::Status status = coordinator_->EndJob("by hand", force);
  model_->Leave();
  model_->Expect(status.ok() == (force || !is_well), "a job ended otherwise than it should");
  model_->Expect(coordinator_->epoch() == epoch + (status.ok() ? 1 : 0),
                 "the epoch does not follow the end of a job");
  model_->Check(/*advanced=*/false);
}

void Simulation::CancelSomething() {
  if (model_->open_calls().empty()) return;
  CancelCall(dice_.Pick(model_->open_calls()));
}

void Simulation::CancelCall(CallPtr call) {
  Log(absl::StrCat("cancel a call of kind ", static_cast<int>(call->kind)));
  model_->Enter();
  const bool cancelled = coordinator_->Cancel(call->wait);
  model_->Leave();
  model_->Expect(cancelled && call->answered, "a parked call could not be cancelled");
  model_->Expect(!call->answered || !call->status.ok(), "a cancelled call went well");
  model_->Check(/*advanced=*/false);
  model_->Expect(!coordinator_->Cancel(call->wait), "a call could be cancelled twice");
}

void Simulation::StopAndStart() {
  Stop();
  if (!model_->violation().empty()) return;
  Account();
  late_.clear();  // They carry values that only the previous coordinator issued.
  model_.reset();
  Start();
}

void Simulation::Beat() {
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (dice_.Chance(5)) continue;
    const TaskId task(static_cast<int32_t>(i));
    Send([this, task, life = agents_[i].life] { DoHeartbeat(task, life); });
  }
}

void Simulation::Log(std::string line) {
  trace_.push_back(absl::StrCat("  ", report_.events, " ",
                                absl::FormatDuration(clock_.Now() - absl::UnixEpoch()), " ", line));
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

SimulationReport RunSimulation(uint64_t seed, int64_t events) {
  return Simulation(seed, events).Run();
}

}  // namespace ferry::coord
