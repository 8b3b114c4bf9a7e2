// SPDX-License-Identifier: Apache-2.0
// The simulation of several workers: their transfers, and their deaths.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "tests/rendezvous/simulation_workers.h"

namespace ferry::simulation {

using absl::StatusCode;

// --- Values

RendezvousKey WorkersSimulation::RandomKey(int src, int dst) {
  return *RendezvousKey::Parse(
      RendezvousKey::Text(absl::StrCat("/job:worker/replica:0/task:", src, "/device:CPU:0"), 1,
                          absl::StrCat("/job:worker/replica:0/task:", dst, "/device:CPU:0"),
                          absl::StrCat("edge", dice_.Roll(edge_count_))));
}

void WorkersSimulation::GiveTerms(Receive& receive) {
  if (dice_.Chance(25)) receive.cancellation = dice_.Pick(cancellations_);
  if (dice_.Chance(25)) receive.deadline = clock_.Now() + absl::Milliseconds(dice_.Roll(8000));
}

void WorkersSimulation::Send(Worker& worker) {
  const Step step = AnyStep(worker);
  if (step.real == nullptr) return;
  const int src = dice_.Chance(2) ? dice_.Roll(worker_count()) : IndexOf(worker);
  const RendezvousKey key = RandomKey(src, dice_.Roll(worker_count()));
  const Value value = ledger_.NewValue(static_cast<size_t>(dice_.Roll(60)), dice_.Chance(8));
  Log(absl::StrCat(IndexOf(worker), " sends in step ", step.real->step_id(), " ", key.text()));
  const Outcome expected = step.model->Send(key, value, clock_.Now());
  if (expected.code == StatusCode::kResourceExhausted) ++ledger_.report().refusals;
  ledger_.ExpectStatus(step.real->Send(key, ledger_.TensorOf(value), value.is_dead,
                                       {.device_context = value.context}),
                       expected, "a send");
}

void WorkersSimulation::Recv(Worker& worker) {
  const Step step = AnyStep(worker);
  if (step.real == nullptr) return;
  const int dst = dice_.Chance(2) ? dice_.Roll(worker_count()) : IndexOf(worker);
  const ReceivePtr receive = ledger_.NewReceive(RandomKey(dice_.Roll(worker_count()), dst));
  GiveTerms(*receive);
  receive->then = [this, who = IndexOf(worker)](const absl::Status&, Received) {
    if (!may_nest_ || !dice_.Chance(20)) return;
    Worker& same = workers_[static_cast<size_t>(who)];
    dice_.Chance(50) ? Send(same) : Recv(same);
  };
  Log(absl::StrCat(IndexOf(worker), " receives as ", receive->id, " in step ", step.real->step_id(),
                   " ", receive->key.text()));
  step.model->Recv(receive, clock_.Now());
  // Nothing to fetch if the model says so.
  network_.set_asker(receive->is_over ? Asker() : Asker{receive, step.model});
  step.real->RecvAsync(receive->key, receive->args(), ledger_.Callback(receive));
  if (!may_nest_) return;
  network_.set_asker({});
}

void WorkersSimulation::RecvLocal(Worker& worker) {
  const int src = dice_.Chance(5) ? dice_.Roll(worker_count()) : IndexOf(worker);
  const ReceivePtr receive = ledger_.NewReceive(RandomKey(src, dice_.Roll(worker_count())));
  GiveTerms(*receive);
  const int64_t step_id = dice_.Pick(step_ids_);
  Log(absl::StrCat(IndexOf(worker), " is asked as ", receive->id, " in step ", step_id, " for ",
                   receive->key.text()));
  const Outcome found = FindModel(worker, step_id);
  if (found.code != StatusCode::kOk) {
    ledger_.End(receive, found);
  } else {
    worker.steps.at(step_id)->RecvLocal(receive, clock_.Now());
  }
  worker.manager->RecvLocalAsync(step_id, receive->key, receive->args(), ledger_.Callback(receive));
}

// --- The network's ends

void WorkersSimulation::Serve(const CallPtr& call) {
  Worker& worker = workers_[static_cast<size_t>(call->server)];
  const ReceivePtr receive = ledger_.NewReceive(call->key);
  receive->cancellation = call->cancellation;
  Log(absl::StrCat(call->server, " serves ", call->asker.receive->id, " as ", receive->id));
  // Weakly: the receive is what its own callback belongs to.
  receive->then = [this, call, weak = std::weak_ptr<Receive>(receive)](const absl::Status& status,
                                                                       Received received) {
    network_.Answer(call, status, std::move(received), weak.lock()->expected);
  };
  const Outcome found = FindModel(worker, call->step_id);
  if (found.code != StatusCode::kOk) {
    ledger_.End(receive, found);
  } else {
    worker.steps.at(call->step_id)->RecvLocal(receive, clock_.Now());
  }
  worker.manager->RecvLocalAsync(call->step_id, receive->key, receive->args(),
                                 ledger_.Callback(receive));
}

void WorkersSimulation::WhileIssuing(const CallPtr& call) {
  const int roll = dice_.Roll(100);
  if (roll < 2) return network_.Refuse(call);
  if (roll > 2) return;
  // The abort that TensorFlow loses (its issue 39015).
  Worker& worker = workers_[static_cast<size_t>(call->client)];
  const auto found = worker.steps.find(call->step_id);
  if (found == worker.steps.end() || found->second != call->asker.step) return;
  Log(absl::StrCat(call->client, " aborts step ", call->step_id, " in the midst of a fetch"));
  const bool could_nest = std::exchange(may_nest_, false);
  found->second->Abort(Error(StatusCode::kInternal, "in the midst"));
  (*worker.manager->Find(call->step_id))->StartAbort(absl::InternalError("in the midst"));
  may_nest_ = could_nest;
}

// --- Faults

void WorkersSimulation::Cancel(const std::shared_ptr<CancellationToken>& cancellation) {
  Log("cancel");
  const bool could_nest = std::exchange(may_nest_, false);
  for (Worker& worker : workers_) {
    for (const auto& [step_id, model] : worker.steps) model->Cancel(*cancellation);
  }
  cancellation->Cancel();
  may_nest_ = could_nest;
}

void WorkersSimulation::MoveClock() {
  clock_.Advance(absl::Milliseconds(dice_.Chance(5) ? -dice_.Roll(1000) : dice_.Roll(2000)));
  Log("the clock moves");
  may_nest_ = false;
  for (Worker& worker : workers_) {
    for (const auto& [step_id, model] : worker.steps) model->Expire(clock_.Now());
    worker.manager->Expire();
    ledger_.Expect(worker.manager->NextDeadline() > clock_.Now(),
                   "a deadline that is over is still kept");
  }
  may_nest_ = true;
}

void WorkersSimulation::Die(Worker& worker) {
  Log(absl::StrCat(IndexOf(worker), " dies, and comes back"));
  ++ledger_.report().deaths;
  may_nest_ = false;
  network_.CloseConnectionsOf(IndexOf(worker));
  for (const auto& [step_id, model] : worker.steps) {
    model->Abort(Error(StatusCode::kAborted, "Shutdown"));
  }
  worker.manager.reset();
  StartWorker(worker);
  may_nest_ = true;
  for (int other = 0; other < worker_count(); ++other) {
    if (other != IndexOf(worker)) news_.emplace_back(other, IndexOf(worker));
  }
}

void WorkersSimulation::HearOfDeath() {
  if (news_.empty()) return;
  const auto which = dice_.Roll(static_cast<int>(news_.size()));
  const auto [observer, dead] = news_[static_cast<size_t>(which)];
  news_.erase(news_.begin() + which);
  Worker& worker = workers_[static_cast<size_t>(observer)];
  const TaskName& name = workers_[static_cast<size_t>(dead)].name;
  Log(absl::StrCat(observer, " hears that ", dead, " has died"));
  may_nest_ = false;
  size_t expected = 0;
  for (const auto& [step_id, model] : worker.steps) {
    expected += model->FailTask(name, Error(StatusCode::kUnavailable, "has died"));
  }
  const size_t actual = worker.manager->FailTask(name, absl::UnavailableError("has died"));
  ledger_.Expect(actual == expected, "a death ended too much, or too little");
  may_nest_ = true;
}

Report RunWorkers(uint64_t seed, int64_t events) { return WorkersSimulation(seed, events).Run(); }

}  // namespace ferry::simulation
