// SPDX-License-Identifier: Apache-2.0
// Copies between two GPUs of one process, in memory of cudaMalloc.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_PEERS_H_
#define FERRY_BENCHMARKS_GPU_CHECK_PEERS_H_

#include "absl/status/status.h"

#include "benchmarks/gpu/check_nodes.h"

namespace ferry::check {

// A node alone, whose gpu:0 and gpu:1 have peer access: checks that Ferry's first copy between them
// enables it in both directions, and reports a figure for each size and direction.
absl::Status CopyWithinProcess(CheckNode& self);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_PEERS_H_
