// SPDX-License-Identifier: Apache-2.0
// A job on a fake clock: shared by the tests of the pure coordinator.
#ifndef FERRY_TESTS_COORD_COORDINATOR_FIXTURE_H_
#define FERRY_TESTS_COORD_COORDINATOR_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "coord/core/coordinator.h"
#include "coord/core/errors.h"
#include "tests/coord/table_checks.h"

namespace ferry::coord {

inline absl::Status StatusOf(const BarrierResult& result) { return result.status; }
inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// For a Status, a StatusOr or a BarrierResult.
MATCHER(IsOk, "") {
  const absl::Status status = StatusOf(arg);
  *result_listener << "which is " << status;
  return status.ok();
}
MATCHER_P(Fails, code, "") {
  const absl::Status status = StatusOf(arg);
  *result_listener << "which is " << status;
  return status.code() == code;
}
MATCHER_P2(Fails, code, message, "") {
  const absl::Status status = StatusOf(arg);
  *result_listener << "which is " << status;
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

// A call to the coordinator and the result of its callback. Copies refer to the same call.
template <typename T>
class Captured {
 public:
  // `may_answer`: false while the coordinator is inside a method, when no callback may run.
  explicit Captured(std::shared_ptr<const bool> may_answer)
      : state_(std::make_shared<State>()), may_answer_(std::move(may_answer)) {}

  auto Callback() {
    return [state = state_, may_answer = may_answer_](T value) {
      EXPECT_TRUE(*may_answer) << "a callback ran inside the call that took it";
      EXPECT_EQ(++state->count, 1) << "a callback was called again";
      state->value = std::move(value);
    };
  }

  bool done() const { return state_->count > 0; }
  int count() const { return state_->count; }
  // Fails the test when there was no answer yet.
  const T& result() const {
    static const T* const kNone = new T(NotAnswered());
    EXPECT_TRUE(done()) << "the call was not answered";
    return state_->value.has_value() ? *state_->value : *kNone;
  }
  static T NotAnswered() {
    if constexpr (std::is_same_v<T, BarrierResult>) {
      return {absl::UnknownError("not answered")};
    } else {
      return absl::UnknownError("not answered");
    }
  }
  WaitId wait() const { return state_->wait; }
  void set_wait(WaitId wait) { state_->wait = wait; }

 private:
  struct State {
    int count = 0;
    std::optional<T> value;
    WaitId wait = kNoWait;
  };
  std::shared_ptr<State> state_;
  std::shared_ptr<const bool> may_answer_;
};

using StatusCall = Captured<absl::Status>;
using BarrierCall = Captured<BarrierResult>;
using TableCall = Captured<absl::StatusOr<TaskTable>>;
using GetCall = Captured<absl::StatusOr<std::vector<StoreEntry>>>;
using AliveCall = Captured<absl::StatusOr<std::vector<TaskInfo>>>;
using InfosCall = Captured<absl::StatusOr<Coordinator::DeviceInfos>>;
using EnumerateCall = Captured<absl::StatusOr<TopologyExchange::Result>>;

inline constexpr absl::Duration kHeartbeatTimeout = absl::Seconds(10);

// No task waits for the others to register or to leave, as in most tests of the upstream service.
inline CoordinatorOptions PlainOptions(int tasks) {
  CoordinatorOptions options;
  options.jobs = {{"jax_worker", tasks}};
  options.register_barrier = false;
  options.shutdown_timeout = absl::ZeroDuration();
  options.heartbeat_timeout = kHeartbeatTimeout;
  return options;
}

inline CoordinatorOptions RecoverableOptions(int tasks) {
  CoordinatorOptions options = PlainOptions(tasks);
  options.recoverable = true;
  return options;
}

// The incarnation with which a task registers unless the test says otherwise.
constexpr uint64_t LifeOf(int task) { return 1000 + static_cast<uint64_t>(task); }

inline std::vector<TaskId> Tasks(std::vector<int> numbers) {
  std::vector<TaskId> tasks;
  for (const int number : numbers) tasks.push_back(TaskId(number));
  return tasks;
}

// A coordinator whose completions run right after each call. Not thread-safe; one per test.
class TestJob final {
 public:
  explicit TestJob(CoordinatorOptions options, uint64_t incarnation = 77)
      : coordinator_(*Coordinator::Create(std::move(options), clock_, incarnation)) {}
  // No test may leave entries in the tables.
  ~TestJob() {
    EXPECT_EQ(TablesThatDisagree(*coordinator_), "");
    coordinator_->Stop();
    // The completions are not run: what they refer to may have been destroyed with the test's body.
    coordinator_->TakeCompletions();
    EXPECT_EQ(TablesLeftByStop(*coordinator_), "");
  }
  TestJob(const TestJob&) = delete;
  TestJob& operator=(const TestJob&) = delete;

  Coordinator& coordinator() { return *coordinator_; }
  Store& store() { return coordinator_->store(); }
  FakeClock& clock() { return clock_; }
  const Task& task(int number) const { return coordinator_->membership().task(TaskId(number)); }
  TaskState state(int number) const { return task(number).state; }

  // Runs what is due until nothing is.
  void Drain() {
    for (auto due = coordinator_->TakeCompletions(); !due.empty();
         due = coordinator_->TakeCompletions()) {
      *may_answer_ = true;
      for (Completion& completion : due) std::move(completion)();
      *may_answer_ = false;
    }
    // Between any two calls; of many, of some.
    if (++drains_ < 200 || drains_ % 256 == 0) {
      EXPECT_EQ(TablesThatDisagree(*coordinator_), "");
    }
  }

  // Lets time pass as an executor would: every deadline is met at its time, and nothing that
  // NextDeadline does not announce.
  void Advance(absl::Duration duration) {
    const absl::Time target = clock_.Now() + duration;
    while (coordinator_->NextDeadline() <= target) {
      MoveTo(std::max(coordinator_->NextDeadline(), clock_.Now()));
      if (coordinator_->NextDeadline() > clock_.Now()) continue;
      ADD_FAILURE() << "something stays due after Advance(): an executor would spin";
      break;
    }
    clock_.Advance(target - clock_.Now());
  }

  // Like Advance, with heartbeats of `tasks` (of LifeOf) four times per heartbeat timeout.
  void AdvanceWithHeartbeats(absl::Duration duration, const std::vector<int>& tasks) {
    const absl::Time target = clock_.Now() + duration;
    while (clock_.Now() < target) {
      for (const int task : tasks) (void)Heartbeat(task);
      Advance(std::min(target - clock_.Now(), coordinator_->options().heartbeat_timeout / 4));
    }
  }

  StatusCall Register(int task, std::optional<uint64_t> life = std::nullopt) {
    Registration registration;
    registration.task = TaskId(task);
    registration.incarnation = Incarnation(life.value_or(LifeOf(task)));
    return Register(std::move(registration));
  }
  StatusCall Register(Registration registration) {
    return Start<absl::Status>([&](auto done) {
      return coordinator_->RegisterTask(std::move(registration), std::move(done));
    });
  }
  // Registers all tasks in LifeOf and expects that to go well.
  void RegisterAll() {
    std::vector<StatusCall> calls;
    for (int i = 0; i < coordinator_->jobs().size(); ++i) calls.push_back(Register(i));
    for (const StatusCall& call : calls) ASSERT_THAT(call.result(), IsOk());
  }

  absl::Status Heartbeat(int task, std::optional<uint64_t> life = std::nullopt) {
    absl::Status status =
        coordinator_->Heartbeat(TaskId(task), Incarnation(life.value_or(LifeOf(task))));
    Drain();
    return status;
  }
  StatusCall Shutdown(int task) {
    return Start<absl::Status>(
        [&](auto done) { return coordinator_->ShutdownTask(TaskId(task), std::move(done)); });
  }
  absl::Status Reset(int task) {
    absl::Status status = coordinator_->ResetTask(TaskId(task));
    Drain();
    return status;
  }
  absl::Status Report(int task, absl::Status error) {
    absl::Status status = coordinator_->ReportError(TaskId(task), std::move(error));
    Drain();
    return status;
  }
  StatusCall Poll(int task, bool is_watched = false) {
    return Start<absl::Status>([&](auto done) {
      return coordinator_->PollForError(TaskId(task), std::move(done), is_watched);
    });
  }
  StatusCall FailJoining(absl::string_view why, absl::Duration timeout = absl::Seconds(20)) {
    return Start<absl::Status>([&](auto done) {
      return coordinator_->FailJoining(absl::FailedPreconditionError(why), timeout,
                                       std::move(done));
    });
  }
  StatusCall WatchJoining() {
    return Start<absl::Status>(
        [&](auto done) { return coordinator_->WatchJoining(kNoTask, std::move(done)); });
  }
  InfosCall WaitForAll(int task, std::string info) {
    return Start<absl::StatusOr<Coordinator::DeviceInfos>>([&](auto done) {
      return coordinator_->WaitForAllTasks(TaskId(task), std::move(info), std::move(done));
    });
  }
  TableCall WatchTasks(int64_t version, int caller = 0) {
    return Start<absl::StatusOr<TaskTable>>([&](auto done) {
      return coordinator_->WatchTasks(
          version, TaskId(caller),
          [done = std::move(done)](absl::StatusOr<Coordinator::TablePtr> table) mutable {
            if (!table.ok()) return std::move(done)(table.status());
            std::move(done)(**table);
          });
    });
  }
  AliveCall Alive(int caller, std::vector<int> tasks) {
    return Start<absl::StatusOr<std::vector<TaskInfo>>>([&](auto done) {
      return coordinator_->GetAliveTasks(TaskId(caller), Tasks(tasks), std::move(done));
    });
  }
  GetCall Get(std::vector<std::string> keys, absl::Duration timeout = absl::InfiniteDuration(),
              TaskId task = kNoTask) {
    return Start<absl::StatusOr<std::vector<StoreEntry>>>([&](auto done) {
      return coordinator_->GetKeys(std::move(keys), task, timeout, std::move(done));
    });
  }
  absl::StatusOr<int64_t> Put(absl::string_view key, std::string value, bool overwrite = false) {
    absl::StatusOr<int64_t> revision = store().Put(key, std::move(value), overwrite);
    Drain();
    return revision;
  }
  int64_t Delete(absl::string_view key, bool subtree) {
    const int64_t count = store().Delete(key, subtree);
    Drain();
    return count;
  }
  BarrierCall Barrier(BarrierArrival arrival) {
    return Start<BarrierResult>(
        [&](auto done) { return coordinator_->Barrier(std::move(arrival), std::move(done)); });
  }
  BarrierCall Barrier(int caller, std::string id, int64_t counter = 0, std::vector<int> tasks = {},
                      absl::Duration timeout = absl::InfiniteDuration()) {
    BarrierArrival arrival;
    arrival.id = std::move(id);
    arrival.counter = counter;
    arrival.timeout = timeout;
    arrival.tasks = Tasks(std::move(tasks));
    arrival.caller = TaskId(caller);
    return Barrier(std::move(arrival));
  }
  absl::Status CancelBarrier(absl::string_view id, int64_t counter = 0) {
    absl::Status status = coordinator_->CancelBarrier(id, counter);
    Drain();
    return status;
  }
  EnumerateCall Enumerate(int task, LocalTopology local,
                          absl::Duration timeout = absl::InfiniteDuration()) {
    return Start<absl::StatusOr<TopologyExchange::Result>>([&](auto done) {
      return coordinator_->EnumerateDevices(TaskId(task), std::move(local), timeout,
                                            std::move(done));
    });
  }
  bool Cancel(WaitId wait) {
    const bool cancelled = coordinator_->Cancel(wait);
    Drain();
    return cancelled;
  }
  void Stop() {
    coordinator_->Stop();
    Drain();
  }

 private:
  void MoveTo(absl::Time time) {
    clock_.Advance(time - clock_.Now());
    coordinator_->Advance();
    Drain();
  }

  template <typename T, typename Method>
  Captured<T> Start(Method method) {
    Captured<T> call(may_answer_);
    call.set_wait(method(call.Callback()));
    Drain();
    EXPECT_EQ(call.wait() == kNoWait, call.done()) << "kNoWait is for calls that are over";
    return call;
  }

  FakeClock clock_;
  int64_t drains_ = 0;
  std::shared_ptr<bool> may_answer_ = std::make_shared<bool>(false);
  std::unique_ptr<Coordinator> coordinator_;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_COORDINATOR_FIXTURE_H_
