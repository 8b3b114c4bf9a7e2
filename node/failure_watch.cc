// SPDX-License-Identifier: Apache-2.0
// FailureWatch: the pace of its requests, and the order in which a failure is passed on.
#include "node/failure_watch.h"

#include <algorithm>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/logging.h"

namespace ferry {
namespace {

// Each change of the table is sent to all watchers. In a large job with many changes in a row (job
// end, rack failure), each node pauses between requests, so that the coordinator has about a
// thousand requests per second to answer.
constexpr int kPromptNodes = 128;
constexpr absl::Duration kPausePerNode = absl::Milliseconds(1);
// Before a request that the coordinator has refused is repeated.
constexpr absl::Duration kRetryPause = absl::Seconds(1);

NodeWatch::Pause PauseOn(EventLoop& loop, absl::Duration time) {
  return [&loop, time](absl::AnyInvocable<void() &&> again) {
    loop.PostAt(SteadyClock().Now() + time, std::move(again));
  };
}

}  // namespace

FailureWatch::FailureWatch(coord::Agent& agent, int node_id, PeerDirectory& peers,
                           NodeCommunicators& communicators, TransferEngine& engine)
    : node_id_(node_id),
      peers_(peers),
      communicators_(communicators),
      engine_(engine),
      watch_(
          [&agent](int64_t version, NodeWatch::Answer answer) {
            agent.WatchTasksAsync(version, std::move(answer));
          },
          agent.num_nodes() > kPromptNodes
              ? PauseOn(engine.loop(), kPausePerNode * agent.num_nodes())
              : nullptr,
          PauseOn(engine.loop(), std::max(kPausePerNode * agent.num_nodes(), kRetryPause)),
          [this](const coord::NodeTable& table) { OnTable(table); }) {}

void FailureWatch::OnTable(const coord::NodeTable& table) {
  for (const LostPeer& lost : peers_.Update(table)) {
    FERRY_LOG_INFO(kNode, "node of the job is gone: peer={}: {}", lost.node_id, lost.why);
    communicators_.Forget(lost);
    if (lost.node_id != node_id_) {
      engine_.FailNode(lost.node_id, lost.why, lost.alive_incarnation);
    }
  }
}

}  // namespace ferry
