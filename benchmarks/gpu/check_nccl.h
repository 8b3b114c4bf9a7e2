// SPDX-License-Identifier: Apache-2.0
// NCCL as a program uses it, without Ferry's transports: communicators, sends and receives.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_NCCL_H_
#define FERRY_BENCHMARKS_GPU_CHECK_NCCL_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "benchmarks/gpu/check_nodes.h"

namespace ferry::check {

// The global id of that GPU of that node.
absl::StatusOr<int> GlobalIdOf(const Node& node, int node_id, int ordinal);

// Rank i is GPU ordinals[i] of node i. Both nodes call it.
//   max_ctas: as CommunicatorOptions.
absl::StatusOr<std::shared_ptr<NcclCommunicator>> MakeCommunicator(CheckNode& self,
                                                                   const std::vector<int>& ordinals,
                                                                   int max_ctas = 0);

// Returns the environment in which NCCL `version` accepts two ranks on one GPU. From 2.30.3 that is
// supported (nccl::kMultiRankGpuVersion). An earlier version takes them for two machines, by
// NCCL_HOSTID, and has only its sockets between them.
// Source: NCCL's environment variables, and init.cc of 2.28 and 2.30.
std::map<std::string, std::string> SharedGpuEnvironment(int node, int version);

// One send, or one receive, or both, of a group.
struct NcclOperation {
  bool is_send = false;
  void* buffer = nullptr;
  size_t bytes = 0;
  int peer = 0;
};

// Enqueues them in one group on `stream`, and waits until NCCL has done so; the caller waits for
// the stream if necessary.
absl::Status RunGroup(NcclCommunicator& communicator, const std::vector<NcclOperation>& operations,
                      cuda::Stream stream);

// Two ranks send each other `bytes`, at the same time, and verify the received ones; a failed check
// of `name` if they are wrong. Both nodes call it.
absl::Status ExchangeAndVerify(CheckNode& self, NcclCommunicator& communicator, size_t bytes,
                               const std::string& name);

// Returns the version of the NCCL library that a part's processes will load, e.g. 23003, or why it
// cannot be loaded.
absl::StatusOr<int> NcclVersion();

// Checks that tensors are put into a pool (NcclTransportOptions::put_bytes), between two GPUs or
// two processes on one; "not supported here", with the reason, where NCCL does not.
absl::Status CheckPuts(PartContext& context, int version);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_NCCL_H_
