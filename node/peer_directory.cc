// SPDX-License-Identifier: Apache-2.0
// PeerDirectory: waiting for records in the store, and which of them are current.
#include "node/peer_directory.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "node/endpoint_record.h"
#include "node/node_failure.h"

namespace ferry {
namespace {

// How often a wait for an address checks whether its node has died.
constexpr absl::Duration kAddressLook = absl::Milliseconds(50);
// This long before such a wait times out, the coordinator is queried for the node's status.
constexpr absl::Duration kAskBefore = absl::Seconds(1);

// An address that is being waited for; shared with callbacks that may outlive the wait.
struct AwaitedAddress {
  absl::Mutex mu;
  std::optional<absl::StatusOr<std::string>> record ABSL_GUARDED_BY(mu);
  // The node's status according to the coordinator.
  std::string situation ABSL_GUARDED_BY(mu);

  bool is_there() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return record.has_value(); }
};

// "it has joined, and was last heard of 3s ago".
std::string SituationOf(const coord::TaskStatus& task) {
  if (task.is_joining) return "it is still joining";
  const std::string heard =
      task.heartbeat_age == absl::InfiniteDuration()
          ? ""
          : absl::StrCat(", and was last heard of ", ShortDuration(task.heartbeat_age), " ago");
  switch (task.state) {
    case coord::TaskState::kConnected:
      return absl::StrCat("it has joined", heard);
    case coord::TaskState::kError:
      return absl::StrCat("it has failed: ", task.error.message());
    case coord::TaskState::kDisconnected:
      break;
  }
  return task.incarnation != 0 ? "it has left the job" : "it has not joined";
}

}  // namespace

absl::Status PeerDirectory::Publish(Endpoint self) {
  const std::string record = EncodeEndpoint(self);
  {
    absl::MutexLock lock(&mu_);
    SetKnown(node_id_, self.peer.incarnation);
    self_ = std::move(self);
  }
  return agent_.Set(EndpointKey(node_id_), record, /*overwrite=*/true);
}

absl::StatusOr<Endpoint> PeerDirectory::Known(int node) const {
  absl::MutexLock lock(&mu_);
  if (const auto found = endpoints_.find(node); found != endpoints_.end()) return found->second;
  return absl::FailedPreconditionError(absl::StrCat(
      "the address of node ", node, " has not been looked up: make keys with Node::Key"));
}

EndpointResolver PeerDirectory::Resolver() const {
  return [&agent = agent_](int32_t node, ResolveCallback done) {
    agent.GetAllAsync(
        {EndpointKey(node)}, kAddressTimeout,
        [node, done = std::move(done)](absl::StatusOr<std::vector<std::string>> values) mutable {
          if (!values.ok()) {
            return std::move(done)(absl::Status(
                values.status().code(),
                absl::StrCat("no address of node ", node, ": ", values.status().message())));
          }
          std::move(done)(DecodeEndpoint(values->front(), node));
        });
  };
}

absl::StatusOr<std::string> PeerDirectory::WaitForRecord(int node, const AddressWait& wait) {
  const auto awaited = std::make_shared<AwaitedAddress>();
  const absl::Time start = SteadyClock().Now();
  const absl::Time deadline = start + wait.timeout;
  agent_.GetAllAsync({EndpointKey(node)}, wait.timeout,
                     [awaited](absl::StatusOr<std::vector<std::string>> values) {
                       absl::MutexLock lock(&awaited->mu);
                       if (values.ok()) {
                         awaited->record = std::move(values->front());
                       } else {
                         awaited->record = values.status();
                       }
                     });
  bool has_asked = false;
  while (true) {
    const absl::Time now = SteadyClock().Now();
    std::string situation;
    {
      absl::MutexLock lock(&awaited->mu);
      awaited->mu.AwaitWithTimeout(absl::Condition(awaited.get(), &AwaitedAddress::is_there),
                                   std::clamp(deadline - now, absl::ZeroDuration(), kAddressLook));
      // A timeout is reported below, with more detail than the store's.
      if (awaited->is_there() && absl::IsDeadlineExceeded(awaited->record->status())) {
        awaited->record.reset();
      }
      if (awaited->is_there()) return *std::move(awaited->record);
      situation = awaited->situation;
    }
    const std::string what = absl::StrCat("the endpoint record of node ", node);
    {
      absl::MutexLock lock(&mu_);
      if (const auto dead = failed_.find(node); dead != failed_.end()) {
        return absl::UnavailableError(
            absl::StrCat("node ", node, " ", FailedOrDied(dead->second),
                         " before it published its endpoint record: ", dead->second.message()));
      }
    }
    if (wait.cancellation != nullptr && wait.cancellation->is_cancelled()) {
      return absl::CancelledError(absl::StrCat("the wait for ", what, " was cancelled"));
    }
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "waited ", ShortDuration(wait.timeout), " for ", what, " (", EndpointKey(node),
          " in the store), which node ", node, " has not published: ",
          situation.empty() ? "the coordinator has not reported its state either" : situation));
    }
    if (!has_asked && deadline - now <= std::max(kAskBefore, wait.timeout / 2)) {
      has_asked = true;
      agent_.WatchTasksAsync(-1, [awaited, node](absl::StatusOr<coord::NodeTable> table) {
        if (!table.ok()) return;
        for (const coord::TaskStatus& task : table->tasks) {
          if (task.node_id != node) continue;
          absl::MutexLock lock(&awaited->mu);
          awaited->situation = SituationOf(task);
        }
      });
    }
  }
}

absl::StatusOr<Endpoint> PeerDirectory::Lookup(int node, const AddressWait& wait) {
  if (node < 0 || node >= agent_.num_nodes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no node ", node, "; the job has ", agent_.num_nodes()));
  }
  {
    absl::MutexLock lock(&mu_);
    if (node == node_id_) {
      if (self_.has_value()) return *self_;
      return absl::FailedPreconditionError("this node has not published its endpoint yet");
    }
    if (const auto found = endpoints_.find(node); found != endpoints_.end()) return found->second;
  }
  const absl::Time deadline = SteadyClock().Now() + wait.timeout;
  const auto late = [&] {
    return absl::DeadlineExceededError(
        absl::StrCat("waited ", ShortDuration(wait.timeout), " for the endpoint record of node ",
                     node, ", which was restarted (", EndpointKey(node), " in the store)"));
  };
  bool has_former_record = false;
  while (true) {
    const absl::Time now = SteadyClock().Now();
    const absl::StatusOr<std::string> record =
        WaitForRecord(node, {.timeout = std::max(deadline - now, absl::ZeroDuration()),
                             .cancellation = wait.cancellation});
    if (!record.ok()) {
      // The time has ended while the former record was read once more.
      if (has_former_record && absl::IsDeadlineExceeded(record.status())) return late();
      return record.status();
    }
    FERRY_ASSIGN_OR_RETURN(Endpoint endpoint, DecodeEndpoint(*record, node));
    {
      absl::MutexLock lock(&mu_);
      if (const auto dead = failed_.find(node); dead != failed_.end()) {
        return absl::UnavailableError(absl::StrCat("node ", node, " ", FailedOrDied(dead->second),
                                                   ": ", dead->second.message()));
      }
      // A former incarnation's record stays in the store until the next one overwrites it.
      const auto alive = incarnations_.find(node);
      if (alive == incarnations_.end() || alive->second == endpoint.peer.incarnation) {
        FERRY_LOG_DEBUG(kNode, "address of a peer: peer={} host={} tcp={}", node,
                        Quoted(endpoint.host_name), absl::StrJoin(endpoint.channels.tcp, ","));
        const Endpoint& known = endpoints_.emplace(node, std::move(endpoint)).first->second;
        SetKnown(node, known.peer.incarnation);
        return known;
      }
    }
    if (wait.cancellation != nullptr && wait.cancellation->is_cancelled()) {
      return absl::CancelledError(
          absl::StrCat("the wait for the endpoint record of node ", node, " was cancelled"));
    }
    if (now >= deadline) return late();
    has_former_record = true;
    absl::SleepFor(kAddressLook);
  }
}

void PeerDirectory::Forget(int node) {
  if (endpoints_.erase(node) > 0) SetKnown(node, 0);
}

std::vector<LostPeer> PeerDirectory::Update(const coord::NodeTable& table) {
  std::vector<LostPeer> lost;
  absl::MutexLock lock(&mu_);
  for (const coord::TaskStatus& task : table.tasks) {
    const auto known = endpoints_.find(task.node_id);
    const bool is_restarted = known != endpoints_.end() &&
                              task.state == coord::TaskState::kConnected &&
                              task.incarnation != known->second.peer.incarnation;
    if (task.state == coord::TaskState::kConnected) {
      incarnations_[task.node_id] = task.incarnation;
    }
    std::vector<uint64_t> gone;
    if (known != endpoints_.end()) gone.push_back(known->second.peer.incarnation);
    if (is_restarted) Forget(task.node_id);
    if (task.state == coord::TaskState::kError) {
      if (!failed_.emplace(task.node_id, task.error).second) continue;
      Forget(task.node_id);
      gone.push_back(task.incarnation);
      lost.push_back(
          {task.node_id,
           absl::UnavailableError(absl::StrCat("node ", task.node_id, " ", FailedOrDied(task.error),
                                               ": ", task.error.message())),
           0, std::move(gone)});
    } else {
      failed_.erase(task.node_id);
      if (is_restarted) {
        lost.push_back({task.node_id,
                        absl::AbortedError(absl::StrCat("node ", task.node_id, " was restarted")),
                        task.incarnation, std::move(gone)});
      }
    }
  }
  return lost;
}

}  // namespace ferry
