// SPDX-License-Identifier: Apache-2.0
// The invariants of barriers in the simulation.
#include "tests/coord/simulation_model.h"

#include "absl/strings/str_cat.h"

namespace ferry::coord {

void SimulationModel::FileBarrierCall(const CallPtr& call) {
  const std::string& id = call->keys[0];
  const auto found = open_uses_.find(id);
  if (found != open_uses_.end()) call->use = found->second;
  if (call->wait == kNoWait) return;
  if (call->use == nullptr) {
    call->use = std::make_shared<BarrierUse>();
    call->use->participants = call->tasks;
    for (const BarrierInfo& info : coordinator_.barriers().OpenBarriers()) {
      if (info.id == id) call->use->counter = info.counter;
    }
    open_uses_[id] = call->use;
  }
  Expect(call->use->participants == call->tasks,
         "a call waits at a barrier of other participants than its own");
  call->use->arrived[call->task] = membership().task(call->task).incarnation;
}

void SimulationModel::BarrierAnswered(SimulatedCall& call) {
  const std::string& id = call.keys[0];
  if (absl::IsCancelled(call.status)) return;
  if (call.wait == kNoWait) {
    // Every caller here is on its own list.
    Expect(!absl::IsInvalidArgument(call.status) || call.use == nullptr ||
               call.use->participants != call.tasks,
           "an open barrier refused a call that names its participants");
    if (!call.status.ok()) return;
    const bool is_open = call.use != nullptr && !call.use->result.has_value();
    if (is_open) {
      CheckArrived(*call.use, call.task);
      call.use->result = call.status;
      ++barriers_passed_;
    } else if (call.use == nullptr) {
      const bool is_alone = call.tasks == std::vector<TaskId>{call.task};
      const auto passed = passed_.find(id);
      Expect(is_alone || passed != passed_.end(), "a barrier passed at which nobody had waited");
      Expect(is_alone || passed == passed_.end() || passed->second == call.tasks,
             "a barrier that is over let a call through that names other participants");
    } else {
      Expect(call.use->result->ok(), "the last to arrive passed a barrier that failed");
    }
    passed_[id] = call.tasks;
    return;
  }
  BarrierUse& use = *call.use;
  if (!use.result.has_value()) {
    use.result = call.status;
    if (call.status.ok()) {
      ++barriers_passed_;
      passed_[id] = use.participants;
      // The last to arrive did not wait, but it is among the calls of this very event.
      for (const CallPtr& other : open_) {
        if (other->kind == CallKind::kBarrier && other->wait == kNoWait && other->keys[0] == id) {
          use.arrived[other->task] = membership().task(other->task).incarnation;
        }
      }
      CheckArrived(use, call.task);
    }
  }
  Expect(*use.result == call.status,
         absl::StrCat("participants of one barrier were told different results: ",
                      use.result->ToString(), " / ", call.status.ToString()));
  Expect(call.number_answered == use.counter,
         absl::StrCat("barrier use ", use.counter, " was answered with counter ",
                      call.number_answered));
}

void SimulationModel::CheckArrived(const BarrierUse& use, TaskId last) {
  for (const TaskId task : use.participants) {
    if (task == last) continue;
    const auto arrival = use.arrived.find(task);
    if (arrival == use.arrived.end()) {
      Expect(false, absl::StrCat("a barrier passed without task ", task.value()));
      return;
    }
    Expect(
        arrival->second == Incarnation() || arrival->second == membership().task(task).incarnation,
        absl::StrCat("a barrier passed with a former life of task ", task.value()));
  }
}

void SimulationModel::CheckBarriers(bool advanced) {
  std::map<std::string, std::shared_ptr<BarrierUse>> still_open;
  for (const BarrierInfo& info : coordinator_.barriers().OpenBarriers()) {
    Expect(!info.missing.empty(), absl::StrCat("barrier ", info.id, " is complete but waits"));
    Expect(!advanced || info.deadline > clock_.Now(), "a barrier outlived its deadline");
    const auto use = open_uses_.find(info.id);
    if (use == open_uses_.end()) continue;  // One of the coordinator's own.
    for (const TaskId task : use->second->participants) {
      Expect(membership().task(task).state != TaskState::kError || IsRecoverable(task),
             absl::StrCat("barrier ", info.id, " waits with failed task ", task.value()));
    }
    for (const auto& [task, since] : info.arrived) {
      const auto arrival = use->second->arrived.find(task);
      const bool is_known = arrival != use->second->arrived.end();
      Expect(is_known, absl::StrCat("task ", task.value(), " never came to ", info.id));
      if (!is_known) continue;
      Expect(arrival->second == Incarnation() ||
                 arrival->second == membership().task(task).incarnation,
             absl::StrCat("barrier ", info.id, " counts a former life of task ", task.value()));
    }
    if (info.counter == use->second->counter) still_open[info.id] = use->second;
  }
  open_uses_ = std::move(still_open);
}

}  // namespace ferry::coord
