// SPDX-License-Identifier: Apache-2.0
// The invariants of the simulation.
#include "tests/coord/simulation_model.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "tests/coord/table_checks.h"

namespace ferry::coord {
namespace {

constexpr Incarnation kForgotten{~uint64_t{0}};

std::string EventText(bool deleted, absl::string_view key, absl::string_view value) {
  return deleted ? absl::StrCat("-", key) : absl::StrCat("+", key, "=", value);
}

}  // namespace

SimulationModel::SimulationModel(Coordinator& coordinator, const Clock& clock)
    : coordinator_(coordinator),
      clock_(clock),
      version_(coordinator.membership().version()),
      seen_(coordinator.jobs().size()),
      heard_(coordinator.jobs().size()) {}

SimulationModel::~SimulationModel() {
  if (store_watch_.has_value()) coordinator_.store().RemoveWatch(*store_watch_);
}

void SimulationModel::Expect(bool condition, absl::string_view what) {
  if (!condition && violation_.empty()) violation_ = std::string(what);
}

void SimulationModel::Leave() {
  is_inside_ = false;
  for (auto due = coordinator_.TakeCompletions(); !due.empty();
       due = coordinator_.TakeCompletions()) {
    for (Completion& completion : due) std::move(completion)();
  }
}

void SimulationModel::Opened(const CallPtr& call, WaitId wait) {
  call->wait = wait;
  open_.push_back(call);
  if (call->kind == CallKind::kBarrier) FileBarrierCall(call);
}

void SimulationModel::Answered(const CallPtr& call, absl::Status status) {
  Expect(!is_inside_, "a callback ran inside a method of the coordinator");
  Expect(!call->answered, "a callback was called twice");
  call->answered = true;
  call->status = std::move(status);
  just_answered_.push_back(call);
  if (call->kind == CallKind::kBarrier) BarrierAnswered(*call);
  // Until now it was a sign of life.
  if (call->is_watched && call->wait != kNoWait) {
    Heard& heard = heard_[call->task.value()];
    heard.greatest = std::max(heard.greatest, clock_.Now());
  }
}

bool SimulationModel::IsRecoverable(TaskId task) const {
  return coordinator_.options().recoverable || membership().task(task).recoverable;
}

// --- The store

void SimulationModel::Set(const std::string& key, std::string value) {
  store_changed_ = true;
  if (store_watch_.has_value()) expected_events_.push_back(EventText(false, key, value));
  keys_[key] = std::move(value);
}

void SimulationModel::Erase(const std::string& key) {
  if (keys_.erase(key) == 0) return;
  store_changed_ = true;
  if (store_watch_.has_value()) expected_events_.push_back(EventText(true, key, ""));
}

int64_t SimulationModel::EraseTree(const std::string& key) {
  std::vector<std::string> gone;
  for (const auto& [name, value] : keys_) {
    if (name == key || absl::StartsWith(name, key + "/")) gone.push_back(name);
  }
  for (const std::string& name : gone) Erase(name);
  return static_cast<int64_t>(gone.size());
}

void SimulationModel::SwitchStoreWatch() {
  if (store_watch_.has_value()) {
    coordinator_.store().RemoveWatch(*store_watch_);
    store_watch_.reset();
    return;
  }
  store_watch_ = coordinator_.store().AddWatch("", false, [this](const StoreEvent& event) {
    events_.push_back(EventText(event.deleted, event.entry.key,
                                event.deleted ? "" : absl::string_view(*event.entry.value)));
  });
}

void SimulationModel::CheckStore() {
  const Store& store = coordinator_.store();
  Expect(store_changed_ ? store.revision() > revision_ : store.revision() == revision_,
         "the revision does not follow the changes");
  revision_ = store.revision();
  store_changed_ = false;
  Expect(events_ == expected_events_, "a store watch heard something else than what happened");
  events_.clear();
  expected_events_.clear();
  Expect(store.key_count() == keys_.size(), "the store has another number of keys than the map");
  if (++checks_ % 256 != 0) return;
  const std::vector<StoreEntry> entries = store.List("");
  bool equal = entries.size() == keys_.size();
  size_t i = 0;
  for (auto it = keys_.begin(); equal && it != keys_.end(); ++it, ++i) {
    equal = entries[i].key == it->first && *entries[i].value == it->second;
  }
  Expect(equal, "the store differs from the map");
  Expect(!keys_.empty() || store.stored_bytes() == 0, "an empty store holds bytes");
}

// --- Tasks

void SimulationModel::HeartbeatCounted(TaskId task) {
  Heard& heard = heard_[task.value()];
  heard.latest = clock_.Now();
  heard.greatest = std::max(heard.greatest, heard.latest);
  heard.ended = absl::InfiniteFuture();
}

void SimulationModel::Beaten(TaskId task) {
  Heard& heard = heard_[task.value()];
  if (untold_.contains(membership().task(task).incarnation)) {
    const absl::Duration gap = clock_.Now() - heard.beat;
    heard.beat = clock_.Now();
    if (gap >= absl::Milliseconds(100)) heard.gaps.push_back(gap);
  }
  HeartbeatCounted(task);
}

void SimulationModel::ConnectionEnded(TaskId task) {
  if (membership().task(task).state != TaskState::kConnected) return;
  heard_[task.value()].ended = clock_.Now();
}

bool SimulationModel::IsFormer(TaskId task, Incarnation life) const {
  return std::find(former_.begin(), former_.end(), std::make_pair(task, life)) != former_.end();
}

bool SimulationModel::IsVouchedFor(TaskId task) const {
  return std::any_of(open_.begin(), open_.end(), [task](const CallPtr& call) {
    return call->is_watched && call->task == task && !call->answered;
  });
}

// docs/protocols.md, "Signs of life".
absl::Duration SimulationModel::LimitOf(const Heard& heard) const {
  const absl::Duration told = coordinator_.options().heartbeat_timeout;
  if (heard.gaps.empty()) return told;
  const size_t first = heard.gaps.size() < 3 ? 0 : heard.gaps.size() - 3;
  const absl::Duration shown =
      2 * *std::max_element(heard.gaps.begin() + static_cast<ptrdiff_t>(first), heard.gaps.end());
  if (shown > told) return coordinator_.options().heartbeat_timeout_is_limit ? told : shown;
  return heard.gaps.size() > 1 ? shown : told;
}

void SimulationModel::CheckNewJob() {
  job_began_ = coordinator_.epoch() != epoch_;
  if (!job_began_) return;
  former_.insert(former_.end(), lives_.begin(), lives_.end());
  lives_.clear();
  Expect(coordinator_.epoch() > epoch_, "the epoch went back");
  epoch_ = coordinator_.epoch();
  keys_.clear();
  open_uses_.clear();
  passed_.clear();
  // Whether a watch is notified of the store's end is not specified; it begins anew.
  events_.clear();
  expected_events_.clear();
  Expect(coordinator_.store().revision() >= revision_, "the revision went back");
  revision_ = coordinator_.store().revision();
  store_changed_ = false;
}

// Messages of a task from before its current incarnation no longer count; its call keeps waiting.
void SimulationModel::ForgetDevicesOf(TaskId task) {
  for (const CallPtr& call : open_) {
    if (call->kind == CallKind::kEnumerate && call->task == task) call->life = kForgotten;
  }
}

void SimulationModel::CheckTasks(bool advanced) {
  bool changed = false;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const Task& task = membership().task(TaskId(i));
    Seen& seen = seen_[i];
    const bool differs = task.state != seen.state || (task.state == TaskState::kConnected &&
                                                      task.incarnation != seen.incarnation);
    Heard& heard = heard_[i];
    if (differs && task.state == TaskState::kConnected) {
      heard = Heard{};
      heard.beat = clock_.Now();
      HeartbeatCounted(TaskId(i));
      lives_.emplace_back(TaskId(i), task.incarnation);
    }
    const absl::Duration limit = LimitOf(heard);
    const absl::Duration grace = std::min(limit / 2, absl::Seconds(3));
    if (differs && task.state == TaskState::kError && absl::IsUnavailable(task.status)) {
      ++deaths_;
      Expect(clock_.Now() - heard.latest >= limit || clock_.Now() - heard.ended >= grace,
             absl::StrCat("task ", i, " was given up though it had beaten in time"));
    }
    if (advanced && task.state == TaskState::kConnected) {
      Expect(clock_.Now() - heard.greatest <= limit || IsVouchedFor(TaskId(i)),
             absl::StrCat("task ", i, " is silent but alive"));
      Expect(clock_.Now() - heard.ended < grace || task.is_leaving,
             absl::StrCat("task ", i, " is gone but alive"));
    }
    Expect(task.state != TaskState::kError || !task.status.ok(), "an error without a status");
    changed = changed || differs;
    if (task.incarnation != seen.incarnation) ForgetDevicesOf(TaskId(i));
    seen = {task.state, task.incarnation};
  }
  const int64_t version = membership().version();
  Expect(version >= version_, "the table's version went back");
  Expect(!changed || version > version_, "a task changed but the table's version did not");
  version_ = version;
}

// --- Calls

void SimulationModel::CheckAnswer(const SimulatedCall& call) {
  const bool ok = call.status.ok();
  const Task* const task =
      coordinator_.jobs().Contains(call.task) ? &membership().task(call.task) : nullptr;
  switch (call.kind) {
    case CallKind::kRegister:
      if (!ok) return;
      Expect(task->state == TaskState::kConnected && task->incarnation == call.life,
             "a registration went well but the task is not connected in that life");
      HeartbeatCounted(call.task);
      return;
    case CallKind::kShutdown:
      Expect(!ok || task->state == TaskState::kDisconnected, "a task that shut down is there");
      return;
    case CallKind::kPoll:
      Expect(!ok, "a poll was answered with OK");
      return;
    case CallKind::kWatch:
      if (!ok || coordinator_.is_stopped()) return;
      Expect(call.number < call.number_answered, "a watch was answered without a change");
      // A registration that begins a new job changes the table twice.
      Expect(call.number_answered == version_ || job_began_,
             "a watch was answered with an old table");
      return;
    case CallKind::kAlive: {
      if (!ok) return;
      std::vector<std::pair<TaskId, Incarnation>> expected;
      std::vector<std::pair<TaskId, Incarnation>> found;
      for (const TaskId member : call.tasks) {
        if (membership().task(member).state == TaskState::kConnected) {
          expected.emplace_back(member, membership().task(member).incarnation);
        }
      }
      for (const TaskInfo& info : call.infos) found.emplace_back(info.task, info.incarnation);
      Expect(found == expected, "a list of alive tasks is not that of the alive tasks");
      return;
    }
    case CallKind::kGet:
      if (!ok) return;
      Expect(call.entries.size() == call.keys.size(), "a get lacks keys");
      for (size_t i = 0; i < std::min(call.entries.size(), call.keys.size()); ++i) {
        const auto key = keys_.find(call.keys[i]);
        Expect(key != keys_.end() && call.entries[i].key == key->first &&
                   *call.entries[i].value == key->second,
               "a get was answered with something else than what is stored");
      }
      return;
    case CallKind::kWaitForAll:
    case CallKind::kBarrier:
    case CallKind::kEnumerate:
      return;
  }
}

void SimulationModel::CheckRounds() {
  std::map<std::vector<TaskId>, std::set<TaskId>> rounds;
  std::set<TaskId> enumerating;
  for (const CallPtr& call : open_) {
    if (call->kind == CallKind::kAlive) rounds[call->tasks].insert(call->task);
    if (call->kind == CallKind::kEnumerate && call->life != kForgotten) {
      enumerating.insert(call->task);
    }
  }
  for (const auto& [tasks, callers] : rounds) {
    const bool waits_for_someone =
        std::any_of(tasks.begin(), tasks.end(), [this, callers = &callers](TaskId task) {
          return membership().task(task).state == TaskState::kConnected && !callers->contains(task);
        });
    Expect(waits_for_someone, "a round waits though every connected task has asked");
  }
  const bool waits = std::any_of(open_.begin(), open_.end(), [](const CallPtr& call) {
    return call->kind == CallKind::kEnumerate;
  });
  Expect(!waits || coordinator_.job_error().ok(), "an enumeration waits though the job has failed");
  Expect(enumerating.size() < seen_.size(), "an enumeration waits though every node has come");
}

void SimulationModel::CheckParked(bool advanced) {
  for (const CallPtr& call : open_) {
    switch (call->kind) {
      case CallKind::kGet:
        Expect(std::any_of(call->keys.begin(), call->keys.end(),
                           [this](const std::string& key) { return !keys_.contains(key); }),
               "a get waits though its keys are there");
        break;
      case CallKind::kWatch:
        Expect(call->number == version_, "a watch waits though the table has changed");
        break;
      case CallKind::kPoll:
        Expect(coordinator_.job_error().ok(), "a poll waits though the job has failed");
        break;
      default:
        break;
    }
    Expect(!advanced || call->deadline > clock_.Now() || call->kind == CallKind::kBarrier,
           "a call outlived its deadline");
  }
}

void SimulationModel::Check(bool advanced) {
  for (const CallPtr& call : open_) {
    Expect(call->wait != kNoWait || call->answered, "a call that did not park was not answered");
  }
  std::erase_if(open_, [](const CallPtr& call) { return call->answered; });
  CheckNewJob();
  CheckTasks(advanced);
  for (const CallPtr& call : std::exchange(just_answered_, {})) CheckAnswer(*call);
  CheckStore();
  CheckParked(advanced);
  CheckBarriers(advanced);
  CheckRounds();
  Expect(coordinator_.wait_count() == open_.size(),
         absl::StrCat("wait_count() is ", coordinator_.wait_count(), " with ", open_.size(),
                      " calls unanswered"));
  if (checks_ % 16 == 0) {
    const std::string wrong = TablesThatDisagree(coordinator_);
    Expect(wrong.empty(), wrong);
  }
  if (checks_ % 64 == 0) {
    Expect(coordinator_.Waits().size() == open_.size(), "Waits() does not list every call");
  }
  Expect(!advanced || coordinator_.NextDeadline() > clock_.Now(),
         "something stays due after Advance()");
}

void SimulationModel::CheckStopped() {
  for (const CallPtr& call : open_) {
    Expect(call->answered, "a call was not answered by Stop()");
  }
  for (const CallPtr& call : just_answered_) {
    Expect(!call->status.ok() || call->kind == CallKind::kWatch, "Stop() ended a call with OK");
  }
  Expect(coordinator_.wait_count() == 0, "something waits after Stop()");
  Expect(coordinator_.NextDeadline() == absl::InfiniteFuture(), "something is due after Stop()");
  const std::string left = TablesLeftByStop(coordinator_);
  Expect(left.empty(), absl::StrCat("left behind by Stop(): ", left));
}

}  // namespace ferry::coord
