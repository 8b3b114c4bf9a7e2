// SPDX-License-Identifier: Apache-2.0
// Node failures: watching the job's node table, and failing operations that need a dead node.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/logging.h"
#include "node/communicator_cache.h"
#include "node/node.h"
#include "node/node_failure.h"
#include "node/node_watch.h"

namespace ferry {
namespace {

// Each change of the table is sent to all watchers. In a large job with many changes in a row (job
// end, rack failure), each node pauses between requests, so that the coordinator has about a
// thousand requests per second to answer.
constexpr int kPromptNodes = 128;
constexpr absl::Duration kPausePerNode = absl::Milliseconds(1);
// Before a request that the coordinator has refused is repeated.
constexpr absl::Duration kRetryPause = absl::Seconds(1);

}  // namespace

void Node::WatchNodes() {
  const auto after = [this](absl::Duration time) -> NodeWatch::Pause {
    return [this, time](absl::AnyInvocable<void() &&> again) {
      exchange_->loop().PostAt(SteadyClock().Now() + time, std::move(again));
    };
  };
  const absl::Duration pause = kPausePerNode * num_nodes();
  node_watch_ = std::make_unique<NodeWatch>(
      [agent = agent_.get()](int64_t version, NodeWatch::Answer answer) {
        agent->WatchTasksAsync(version, std::move(answer));
      },
      num_nodes() > kPromptNodes ? after(pause) : nullptr, after(std::max(pause, kRetryPause)),
      [this](const coord::NodeTable& table) { OnNodes(table); });
}

void Node::OnNodes(const coord::NodeTable& table) {
  struct Dead {
    int node = 0;
    absl::Status why;
    // 0: no live successor.
    uint64_t alive_incarnation = 0;
    std::vector<uint64_t> gone_incarnations;
  };
  std::vector<Dead> dead;
  {
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
      if (is_restarted) endpoints_.erase(known);
      if (task.state == coord::TaskState::kError) {
        if (!failed_.emplace(task.node_id, task.error).second) continue;
        endpoints_.erase(task.node_id);
        gone.push_back(task.incarnation);
        dead.push_back(
            {task.node_id,
             absl::UnavailableError(absl::StrCat(
                 "node ", task.node_id, " ", FailedOrDied(task.error), ": ", task.error.message())),
             0, std::move(gone)});
      } else {
        failed_.erase(task.node_id);
        if (is_restarted) {
          dead.push_back({task.node_id,
                          absl::AbortedError(absl::StrCat("node ", task.node_id, " was restarted")),
                          task.incarnation, std::move(gone)});
        }
      }
    }
  }
  for (const Dead& each : dead) {
    FERRY_LOG_INFO(kNode, "node of the job is gone: peer={}: {}", each.node, each.why);
    std::vector<int> devices;
    for (size_t id = 0; id < topology_.devices().size(); ++id) {
      const int index = topology_.devices()[id].node_index;
      if (topology_.nodes()[static_cast<size_t>(index)].node_id == each.node) {
        devices.push_back(static_cast<int>(id));
      }
    }
    kept_->Forget(
        // Does not match a later incarnation of the node. May be called after this Node is
        // destroyed.
        [devices = std::move(devices), gone = each.gone_incarnations](const CliqueMember& member) {
          return absl::c_linear_search(devices, member.device) &&
                 absl::c_linear_search(gone, member.incarnation);
        },
        each.why);
    if (each.node != node_id()) exchange_->FailNode(each.node, each.why, each.alive_incarnation);
  }
}

}  // namespace ferry
