// SPDX-License-Identifier: Apache-2.0
// What the demo and its workers agree on.
#ifndef FERRY_CLI_DEMO_WORKER_H_
#define FERRY_CLI_DEMO_WORKER_H_

#include <vector>

#include "absl/time/time.h"

namespace ferry::cli {

// A worker writes one JSON object a line: {"event": ..., "seconds": ..., ...}. In this order:
//   joined     join_s, topology (hash), summary, no_gpu (reason)
//   keys       it set its own key and got and checked everyone's
//   all        it passed a barrier of all nodes
//   even       it passed a barrier of the nodes with even numbers; those only
//   tensor     a tensor has come from node 0 and is right: bytes, way, first_s, again_s. Of node 1
//              only, kDemoTransfers times.
//   late       the barrier that the last node stays away from has failed as it should: message
//   heard      the job's error has arrived: message. Not the last node: it writes "waiting" and is
//              killed.
inline constexpr char kLateBarrier[] = "demo/checkpoint";
// The demo sets it once it watches that barrier.
inline constexpr char kWatchingKey[] = "demo/watching";
inline constexpr absl::Duration kLateTimeout = absl::Milliseconds(600);
// Node i comes to it this much after node i - 1.
inline constexpr absl::Duration kLateStep = absl::Milliseconds(50);
// Any one step; so that a demo that goes wrong ends.
inline constexpr absl::Duration kDemoTimeout = absl::Seconds(20);

// 0, 2, 4, ... below `num_nodes`.
std::vector<int> EvenNodes(int num_nodes);

}  // namespace ferry::cli

#endif  // FERRY_CLI_DEMO_WORKER_H_
