// SPDX-License-Identifier: Apache-2.0
// The world of the simulation: agents, their network, and one coordinator after the other.
#ifndef FERRY_TESTS_COORD_SIMULATION_WORLD_H_
#define FERRY_TESTS_COORD_SIMULATION_WORLD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/clock.h"
#include "coord/core/coordinator.h"
#include "tests/coord/simulation.h"
#include "tests/coord/simulation_model.h"

namespace ferry::coord {

// The same on every machine, unlike the standard's distributions.
class Dice final {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // 0 to sides - 1.
  int Roll(int sides) { return static_cast<int>(engine_() % static_cast<uint64_t>(sides)); }
  bool Chance(int percent) { return Roll(100) < percent; }
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[Roll(static_cast<int>(from.size()))];
  }
  uint64_t Word() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// A process of the job: its own state, as opposed to the coordinator's record of it.
struct SimulatedAgent {
  Incarnation life;
  // The next use of each barrier, as agents count.
  std::map<std::string, int64_t> next_use;
  // Its client does not transmit its heartbeat timeout, which has to be learned.
  bool is_untold = false;
};

// Not thread-safe. Every choice follows from the seed.
class Simulation final {
 public:
  Simulation(uint64_t seed, int64_t events) : dice_(seed), events_(events) { Start(); }
  SimulationReport Run();

 private:
  // --- The coordinator's incarnations
  void Start();
  void Stop();
  void Account();

  // --- Events
  void DoEvent();
  using Message = std::function<void()>;
  Message MakeMessage(int roll);
  // The network: loses, delays and repeats.
  void Send(Message message);
  void Deliver(const Message& message);
  void DeliverLate();
  void MoveClock(absl::Duration by);
  // The process dies; a new one starts without its state. Its calls may be noticed as gone.
  void Restart();
  void CancelSomething();
  void CancelCall(CallPtr call);
  void StopAndStart();
  void Beat();
  // The connection breaks on which some task polls for errors.
  void EndConnection();
  // A process of an earlier job resumes.
  void CallLate();
  void EndJob();

  // --- Calls
  void DoHeartbeat(TaskId task, Incarnation life);
  void DoRegister(TaskId task, const Registration& registration);
  CallPtr NewCall(CallKind kind, TaskId task);
  auto StatusDone(CallPtr call) {
    return [this, call](absl::Status status) { model_->Answered(call, std::move(status)); };
  }
  Message Register(TaskId task);
  Message Shutdown(TaskId task);
  Message Reset(TaskId task);
  Message Report(TaskId task);
  Message Poll(TaskId task);
  Message WaitForAll(TaskId task);
  Message Watch(TaskId task);
  // A set that contains `task`; there are few, so that rounds and barriers complete.
  std::vector<TaskId> SetWith(TaskId task);
  Message Alive(TaskId task);
  Message Enumerate(TaskId task);
  Message Barrier(TaskId task);
  // The list of `tasks` as a program may send it: in any order, with repeats, and possibly empty if
  // it names all.
  std::vector<TaskId> Spelled(std::vector<TaskId> tasks);
  // The tasks that such a list means, sorted.
  std::vector<TaskId> Meant(const std::vector<TaskId>& tasks) const;
  // Agents do not wait twice at one barrier.
  bool WaitsAt(const std::string& id, TaskId task) const;
  void DoBarrier(const BarrierArrival& arrival, Incarnation life);
  Message CancelBarrier();

  // --- The store
  std::string RandomKey();
  // Whether a change may be refused by a limit.
  bool IsRefused(const absl::Status& status);
  Message Put();
  Message Get(TaskId task);
  Message Delete();
  Message Increment();
  Message CompareAndSet();

  // --- Odds and ends
  Incarnation NewLife() { return Incarnation(++last_life_); }
  // A new process of `task`.
  void StartAgent(TaskId task);
  void Log(std::string line);
  Dice dice_;
  const int64_t events_;
  FakeClock clock_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<SimulationModel> model_;
  std::vector<SimulatedAgent> agents_;
  std::vector<Message> late_;
  bool is_store_small_ = false;
  uint64_t last_life_ = 0;
  std::deque<std::string> trace_;
  SimulationReport report_;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_SIMULATION_WORLD_H_
