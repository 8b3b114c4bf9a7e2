// SPDX-License-Identifier: Apache-2.0
// The workers of a simulation, each with its manager and the model of it.
#ifndef FERRY_TESTS_RENDEZVOUS_SIMULATION_WORKERS_H_
#define FERRY_TESTS_RENDEZVOUS_SIMULATION_WORKERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "rendezvous/rendezvous_manager.h"
#include "tests/rendezvous/simulation_ledger.h"
#include "tests/rendezvous/simulation_model.h"
#include "tests/rendezvous/simulation_network.h"

namespace ferry::simulation {

// A step of a worker as its user holds it: the real one and its model.
struct Step {
  std::shared_ptr<RemoteRendezvous> real;
  std::shared_ptr<StepModel> model;
};

struct Worker {
  TaskName name;
  std::unique_ptr<RemoteFetcher> fetcher;
  std::unique_ptr<RendezvousManager> manager;
  // The model of the manager.
  std::map<int64_t, std::shared_ptr<StepModel>> steps;
  std::deque<int64_t> finished;
  // Steps that are over, as a slow kernel still holds them.
  std::vector<Step> old_steps;
};

// Not thread-safe. Every choice follows from the seed.
class WorkersSimulation final {
 public:
  WorkersSimulation(uint64_t seed, int64_t events);
  Report Run();

 private:
  // --- The world
  void Start();
  void StartWorker(Worker& worker);
  void Stop();
  void DoEvent();
  void Check();
  void CheckPending(const Worker& worker);

  // --- Steps
  // As RendezvousManager::Find; computes the expected result, and compares.
  Outcome FindModel(Worker& worker, int64_t step_id);
  Step Find(Worker& worker, int64_t step_id);
  Step AnyStep(Worker& worker);
  void Begin(Worker& worker);
  void Initialize(const Step& step, const TaskName& name);
  void Abort(Worker& worker);
  void Cleanup(Worker& worker);
  void CleanupAll(Worker& worker);
  void MarkFinished(Worker& worker, int64_t step_id);

  // --- Values
  RendezvousKey RandomKey(int src, int dst);
  void Send(Worker& worker);
  void Recv(Worker& worker);
  void RecvLocal(Worker& worker);
  void GiveTerms(Receive& receive);

  // --- The network's ends
  void Serve(const CallPtr& call);
  void WhileIssuing(const CallPtr& call);

  // --- Faults
  void Cancel(const std::shared_ptr<CancellationToken>& cancellation);
  void MoveClock();
  void Die(Worker& worker);
  void HearOfDeath();

  Worker& AnyWorker() { return workers_[static_cast<size_t>(dice_.Roll(worker_count()))]; }
  int worker_count() const { return static_cast<int>(workers_.size()); }
  int IndexOf(const Worker& worker) const { return static_cast<int>(worker.name.task); }
  void Log(std::string line) { ledger_.Log(clock_.Now(), std::move(line)); }

  Dice dice_;
  const int64_t events_;
  FakeClock clock_;
  Ledger ledger_;
  Network network_;
  RendezvousManagerOptions options_;
  std::vector<Worker> workers_;
  std::vector<int64_t> step_ids_;
  int64_t last_step_id_ = 0;
  int edge_count_ = 1;
  std::vector<std::shared_ptr<CancellationToken>> cancellations_;
  // Which workers have yet to be notified of which deaths.
  std::vector<std::pair<int, int>> news_;
  // Whether a callback may do more than take its value: not while many end, in an order of their
  // own.
  bool may_nest_ = true;
};

}  // namespace ferry::simulation

#endif  // FERRY_TESTS_RENDEZVOUS_SIMULATION_WORKERS_H_
