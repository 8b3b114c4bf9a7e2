// SPDX-License-Identifier: Apache-2.0
// The invariants of a coordinator, checked against a slow and simple model of it.
#ifndef FERRY_TESTS_COORD_SIMULATION_MODEL_H_
#define FERRY_TESTS_COORD_SIMULATION_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "coord/core/coordinator.h"

namespace ferry::coord {

enum class CallKind {
  kRegister,
  kShutdown,
  kPoll,
  kWaitForAll,
  kWatch,
  kAlive,
  kGet,
  kBarrier,
  kEnumerate
};

// One use of a barrier, from its first arrival to its end.
struct BarrierUse {
  int64_t counter = 0;
  // Sorted.
  std::vector<TaskId> participants;
  // The incarnation under which each task was known when it arrived.
  std::map<TaskId, Incarnation> arrived;
  // The first result a participant received that was not CANCELLED.
  std::optional<absl::Status> result;
};

struct SimulatedCall {
  CallKind kind = CallKind::kGet;
  TaskId task = kNoTask;
  Incarnation life;
  WaitId wait = kNoWait;
  absl::Time deadline = absl::InfiniteFuture();
  // kGet: the keys; kBarrier: the id alone.
  std::vector<std::string> keys;
  // kAlive, kBarrier; sorted.
  std::vector<TaskId> tasks;
  // kPoll: its connection is watched.
  bool is_watched = false;
  // kWatch: the version; kBarrier: the counter.
  int64_t number = 0;
  std::shared_ptr<BarrierUse> use;

  bool answered = false;
  absl::Status status;
  // kGet.
  std::vector<StoreEntry> entries;
  // kAlive; kWatch with its version in `number_answered`.
  std::vector<TaskInfo> infos;
  int64_t number_answered = 0;
};
using CallPtr = std::shared_ptr<SimulatedCall>;

// Watches one coordinator. Not thread-safe; the coordinator and the clock outlive it.
//   Around each call of the coordinator: Enter(); call; Leave(). Before that, the model's own
//   expectation of a change of the store. After it, Check().
class SimulationModel final {
 public:
  SimulationModel(Coordinator& coordinator, const Clock& clock);
  ~SimulationModel();
  SimulationModel(const SimulationModel&) = delete;
  SimulationModel& operator=(const SimulationModel&) = delete;

  // The first violation; empty so far.
  const std::string& violation() const { return violation_; }
  void Expect(bool condition, absl::string_view what);

  // No callback may run between the two; Leave runs those that are due.
  void Enter() { is_inside_ = true; }
  void Leave();

  // Every call is reported with its wait once the coordinator has returned, and before Leave.
  void Opened(const CallPtr& call, WaitId wait);
  // From the callback.
  void Answered(const CallPtr& call, absl::Status status);
  const std::vector<CallPtr>& open_calls() const { return open_; }

  // --- The store, as a plain map
  const std::map<std::string, std::string>& keys() const { return keys_; }
  void Set(const std::string& key, std::string value);
  void Erase(const std::string& key);
  // Removes `key` and the keys under it; returns how many.
  int64_t EraseTree(const std::string& key);
  void SwitchStoreWatch();

  // --- Tasks and barriers
  void HeartbeatCounted(TaskId task);
  // A heartbeat of a connected task, from which its interval may be learned.
  void Beaten(TaskId task);
  // The process of this incarnation does not transmit its heartbeat timeout.
  void NoteUntold(Incarnation life) { untold_.insert(life); }
  // The connection of a task has ended; it has called again.
  void ConnectionEnded(TaskId task);
  void Called(TaskId task) { heard_[task.value()].ended = absl::InfiniteFuture(); }
  // Incarnations that were connected in earlier jobs.
  const std::vector<std::pair<TaskId, Incarnation>>& former_incarnations() const { return former_; }
  bool IsFormer(TaskId task, Incarnation life) const;
  void BarrierCancelled(const std::string& id) { open_uses_.erase(id); }

  // Everything that must hold between two events; `advanced`: right after Advance().
  void Check(bool advanced);
  void CheckStopped();

  int64_t barriers_passed() const { return barriers_passed_; }
  int64_t deaths() const { return deaths_; }

 private:
  struct Heard {
    absl::Time latest = absl::InfinitePast();
    absl::Time greatest = absl::InfinitePast();
    // The last heartbeat or registration of a task that does not send its heartbeat timeout, and
    // the gaps between its heartbeats.
    absl::Time beat = absl::InfinitePast();
    std::vector<absl::Duration> gaps;
    absl::Time ended = absl::InfiniteFuture();
  };
  struct Seen {
    TaskState state = TaskState::kDisconnected;
    Incarnation incarnation;
  };

  const Membership& membership() const { return coordinator_.membership(); }
  bool IsRecoverable(TaskId task) const;
  // How long a task may be silent.
  absl::Duration LimitOf(const Heard& heard) const;
  // A call of the task waits on a connection that is watched.
  bool IsVouchedFor(TaskId task) const;
  void FileBarrierCall(const CallPtr& call);
  void BarrierAnswered(SimulatedCall& call);
  void CheckArrived(const BarrierUse& use, TaskId last);
  void CheckAnswer(const SimulatedCall& call);
  void CheckNewJob();
  void ForgetDevicesOf(TaskId task);
  void CheckTasks(bool advanced);
  void CheckStore();
  void CheckParked(bool advanced);
  void CheckBarriers(bool advanced);
  void CheckRounds();

  Coordinator& coordinator_;
  const Clock& clock_;
  std::string violation_;
  bool is_inside_ = false;
  std::vector<CallPtr> open_;
  std::vector<CallPtr> just_answered_;

  std::map<std::string, std::string> keys_;
  bool store_changed_ = false;
  int64_t revision_ = 0;
  int64_t checks_ = 0;
  std::optional<Store::Watch> store_watch_;
  std::vector<std::string> expected_events_;
  std::vector<std::string> events_;

  int64_t epoch_ = 1;
  // In the event that is being checked.
  bool job_began_ = false;
  int64_t version_ = 0;
  std::vector<Seen> seen_;
  std::vector<Heard> heard_;
  std::set<Incarnation> untold_;
  // The incarnations of the present job, and those of earlier jobs.
  std::vector<std::pair<TaskId, Incarnation>> lives_;
  std::vector<std::pair<TaskId, Incarnation>> former_;
  std::map<std::string, std::shared_ptr<BarrierUse>> open_uses_;
  // Ids of which some use went well, with the participants of the last such use.
  std::map<std::string, std::vector<TaskId>> passed_;
  int64_t barriers_passed_ = 0;
  int64_t deaths_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_SIMULATION_MODEL_H_
