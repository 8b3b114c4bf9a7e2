// SPDX-License-Identifier: Apache-2.0
// A topology in a few words.
#ifndef FERRY_CLI_SUMMARY_H_
#define FERRY_CLI_SUMMARY_H_

#include <string>

#include "topology/global_topology.h"

namespace ferry::cli {

// "4 nodes on 1 machine, 4 host devices, 8 GPUs (NVIDIA H200)".
std::string Summarize(const GlobalTopology& topology);

// 16 hex digits over the bytes that stand for the topology: equal exactly where those are equal.
std::string TopologyHash(const GlobalTopology& topology);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SUMMARY_H_
