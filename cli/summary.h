// SPDX-License-Identifier: Apache-2.0
// Summarises a topology.
#ifndef FERRY_CLI_SUMMARY_H_
#define FERRY_CLI_SUMMARY_H_

#include <string>

#include "topology/global_topology.h"

namespace ferry::cli {

// Returns "4 nodes on 1 machine, 4 host devices, 8 GPUs (NVIDIA H200)".
std::string Summarize(const GlobalTopology& topology);

// Returns 16 hex digits, a hash of the topology's canonical bytes.
std::string TopologyHash(const GlobalTopology& topology);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SUMMARY_H_
