// SPDX-License-Identifier: Apache-2.0
// The protocol between the demo and its workers.
#ifndef FERRY_CLI_DEMO_WORKER_H_
#define FERRY_CLI_DEMO_WORKER_H_

#include <vector>

#include "absl/time/time.h"

namespace ferry::cli {

// A worker writes one JSON object a line: {"event": ..., "seconds": ..., ...}. In this order:
//   joined     join_s, topology (hash), summary, no_gpu (reason)
//   keys       it set its own key, and read and checked all keys
//   all        it passed a barrier of all nodes
//   even       it passed a barrier of the nodes with even numbers; only on those
//   tensor     received a tensor from node 0 and verified it: bytes, way, first_s, again_s.
//              Only on node 1, kDemoTransfers times.
//   late       the barrier that the last node does not enter failed as expected: message
//   heard      the job's error arrived: message. Not on the last node: it writes "waiting" and is
//              killed.
inline constexpr char kLateBarrier[] = "demo/checkpoint";
// Set by the demo once it watches that barrier.
inline constexpr char kWatchingKey[] = "demo/watching";
inline constexpr absl::Duration kLateTimeout = absl::Milliseconds(600);
// Delay between the arrivals of node i - 1 and node i.
inline constexpr absl::Duration kLateStep = absl::Milliseconds(50);
// Timeout of each step, so that a failing demo ends.
inline constexpr absl::Duration kDemoTimeout = absl::Seconds(20);

// Returns 0, 2, 4, ... below `num_nodes`.
std::vector<int> EvenNodes(int num_nodes);

}  // namespace ferry::cli

#endif  // FERRY_CLI_DEMO_WORKER_H_
