// SPDX-License-Identifier: Apache-2.0
// The model of a simulation: the expected behaviour of a table and of a step of a worker, in plain
// containers.
#ifndef FERRY_TESTS_RENDEZVOUS_SIMULATION_MODEL_H_
#define FERRY_TESTS_RENDEZVOUS_SIMULATION_MODEL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "rendezvous/device_name.h"
#include "rendezvous/local_rendezvous.h"
#include "tests/rendezvous/simulation_ledger.h"

namespace ferry::simulation {

Outcome Error(absl::StatusCode code, std::string text);
// As RemoteRendezvous marks what it aborts with.
Outcome AsConsequence(Outcome why);

// A description of each item, in the order of its key: "<key> send 12 3s".
using PendingLines = std::vector<std::string>;
std::string PendingLine(absl::string_view prefix, const RendezvousKey& key, absl::string_view side,
                        size_t bytes, absl::Duration age);

// A LocalRendezvous by its contract. Each call computes the expected results of the same call to
// the real one right afterwards: finished receives are recorded in the ledger.
class TableModel final {
 public:
  TableModel(Ledger& ledger, RendezvousLimits limits) : ledger_(ledger), limits_(limits) {}

  Outcome Send(const RendezvousKey& key, const Value& value, absl::Time now);
  void Recv(const ReceivePtr& receive, absl::Time now);
  void Cancel(const CancellationToken& cancellation);
  void Expire(absl::Time now);
  void Abort(const Outcome& why);
  size_t Fail(const std::function<std::optional<Outcome>(const RendezvousKey&)>& verdict);

  const std::optional<Outcome>& aborted() const { return aborted_; }
  size_t waiting_count() const { return waiting_count_; }
  size_t queued_bytes() const { return queued_bytes_; }
  // Sends that wait and are not dead: each holds a buffer.
  int64_t queued_tensors() const { return queued_tensors_; }
  absl::Time FirstDeadline() const;
  void AddPending(absl::string_view prefix, absl::Time now, PendingLines& lines) const;

 private:
  // A send, or a receive if there is one.
  struct Item {
    Value value;
    ReceivePtr receive;
    absl::Time since;
  };
  using Queue = std::deque<Item>;

  // Removes the items that `matches`, in the order of each key.
  std::vector<Item> Take(const std::function<bool(const RendezvousKey&, const Item&)>& matches);
  void Count(const Item& item, int sign);

  Ledger& ledger_;
  const RendezvousLimits limits_;
  std::map<std::string, std::pair<RendezvousKey, Queue>> queues_;
  std::optional<Outcome> aborted_;
  size_t waiting_count_ = 0;
  size_t queued_bytes_ = 0;
  int64_t queued_tensors_ = 0;
};

// A RemoteRendezvous by its contract.
class StepModel final {
 public:
  StepModel(Ledger& ledger, int64_t step_id, RendezvousLimits limits)
      : step_id(step_id), table(ledger, limits), ledger_(ledger), limits_(limits) {}

  Outcome Initialize(const TaskName& worker, absl::Time now);
  Outcome Send(const RendezvousKey& key, const Value& value, absl::Time now);
  void Recv(const ReceivePtr& receive, absl::Time now);
  void RecvLocal(const ReceivePtr& receive, absl::Time now);
  // The fetch of that receive has come back.
  void Fetched(const ReceivePtr& receive, const Outcome& outcome);
  void Cancel(const CancellationToken& cancellation);
  void Expire(absl::Time now);
  void Abort(const Outcome& why);
  size_t FailTask(const TaskName& task, const Outcome& why);

  size_t fetch_count() const { return waiting_.size(); }
  absl::Time FirstDeadline() const;
  void AddPending(absl::Time now, PendingLines& lines) const;

  const int64_t step_id;
  TableModel table;

 private:
  struct Waiting {
    ReceivePtr receive;
    bool is_deferred = false;
  };

  void Add(const ReceivePtr& receive, bool is_deferred, absl::Time now);
  // Ends those for which `verdict` returns a status; returns how many.
  size_t EndSome(const std::function<std::optional<Outcome>(const Waiting&)>& verdict);

  Ledger& ledger_;
  const RendezvousLimits limits_;
  std::optional<TaskName> worker_;
  std::list<Waiting> waiting_;
};

}  // namespace ferry::simulation

#endif  // FERRY_TESTS_RENDEZVOUS_SIMULATION_MODEL_H_
