// SPDX-License-Identifier: Apache-2.0
// TopologyExchange: every node sends its devices, and gets those of all once all have.
#ifndef FERRY_COORD_CORE_TOPOLOGY_EXCHANGE_H_
#define FERRY_COORD_CORE_TOPOLOGY_EXCHANGE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/jobs.h"
#include "coord/core/types.h"
#include "topology/enumeration.h"
#include "topology/global_topology.h"
#include "topology/local_topology.h"

namespace ferry::coord {

// The complete topology and its bytes (a ferry.v1.GlobalTopology), built once and shared.
struct SharedTopology {
  GlobalTopology topology;
  std::string bytes;
  // By node: the message with its devices, if its service uses another encoding than ours.
  std::vector<std::string> as_told;
};

// Not thread-safe: part of a Coordinator. Devices get dense ids in the order of the node numbers,
// whatever the order of arrival.
class TopologyExchange final {
 public:
  using Result = std::shared_ptr<const SharedTopology>;
  using DoneCallback = absl::AnyInvocable<void(absl::StatusOr<Result>) &&>;

  TopologyExchange(const Jobs& jobs, Completions& completions, WaitIds& ids)
      : jobs_(jobs),
        completions_(completions),
        ids_(ids),
        nodes_(jobs.size()),
        submitted_(jobs.size()) {}

  // The same topology may be sent again, also after all have been received. The first `as_told` of
  // a task is kept (SharedTopology).
  //   Errors: INVALID_ARGUMENT for a malformed one; INTERNAL when `task` has sent a different one;
  //   DEADLINE_EXCEEDED naming the missing tasks.
  WaitId Enumerate(TaskId task, LocalTopology local, absl::Time now, absl::Time deadline,
                   DoneCallback done, std::string as_told = "");
  bool Cancel(WaitId wait, const absl::Status& why);
  // Ends all waits: the missing topologies will not come. Those received are kept.
  void EndWaits(const absl::Status& why);
  // A restarted task may send another topology; the global one is rebuilt when it does.
  void Forget(TaskId task);
  void Clear(const absl::Status& why);

  // Null until all tasks have sent theirs.
  Result result() const { return result_; }

  absl::Time NextDeadline() const;
  void Expire(absl::Time now);
  size_t wait_count() const { return waits_.size(); }
  void ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const;
  // "topology...."
  void AddTableSizes(TableSizes& sizes) const;

 private:
  struct Waiting {
    TaskId task = kNoTask;
    absl::Time since;
    absl::Time deadline;
    DoneCallback done;
  };

  void Remove(TaskId task);
  void Answer(DoneCallback done, absl::StatusOr<Result> result);
  absl::Status TimedOut(const Waiting& waiting) const;

  // Constant after construction.
  const Jobs& jobs_;
  Completions& completions_;
  WaitIds& ids_;

  Enumeration nodes_;
  std::vector<std::string> submitted_;
  Result result_;
  absl::btree_map<WaitId, Waiting> waits_;
  absl::btree_set<std::pair<absl::Time, WaitId>> deadlines_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_TOPOLOGY_EXCHANGE_H_
