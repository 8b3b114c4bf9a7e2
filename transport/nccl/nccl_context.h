// SPDX-License-Identifier: Apache-2.0
// The job's NCCL library and store, for keyed transfers over NCCL, and their options.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_CONTEXT_H_
#define FERRY_TRANSPORT_NCCL_NCCL_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "gpu/communicator/communicator.h"
#include "gpu/nccl/nccl_api.h"
#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// The job's NCCL resources; a missing one is the reason why NCCL is not used. A value.
struct NcclJob {
  // Null: `library_unavailable_reason` has the reason.
  std::shared_ptr<const nccl::NcclApi> library;
  std::string library_unavailable_reason;
  // Store through which the ranks of a communicator bootstrap; null: this process has joined no
  // job.
  BootstrapStoreFactory store;
  // The job-wide id of a node's GPU, the same on all nodes; nothing: not in the topology.
  std::function<std::optional<DeviceId>(int32_t node_id, int ordinal)> device_of;
};

struct NcclTransportOptions {
  // Memory budget for the communicators of one GPU, in bytes: each counts for the largest drop in
  // the GPU's free memory while one was created and first used, and at least for
  // communicator_bytes(). Least recently used ones are evicted. 0: NCCL moves no keyed tensors.
  uint64_t memory_bytes = uint64_t{1} << 30;
  // Size of each GPU's pool for one-sided transfers (ncclPutSignal), in bytes, if NCCL and its
  // communicators have them (docs/nccl.md). Used between GPUs of processes that both have a pool.
  // Not tried on hardware. 0: all transfers are sent in batches.
  uint64_t put_bytes = 0;
  // Latency of a transfer: a grant, its answer, a launch on either side, and detecting completion.
  // For small tensors, up to about 150 KB, more than copies through host memory take.
  absl::Duration assumed_latency = absl::Microseconds(150);
  // Thread blocks that each communicator's kernels use.
  int max_ctas = 8;
  // Timeout for both sides to arrive, and for the communicator to be created.
  absl::Duration open_timeout = absl::Seconds(30);
  // Timeout of a transfer once both sides know of it: then its communicator is aborted, and the
  // tensor takes another path.
  absl::Duration transfer_timeout = absl::Seconds(60);
  // Timeout for NCCL to release communicators when this process leaves.
  absl::Duration abort_timeout = absl::Seconds(30);
  BatchAgreementOptions grants;

  // Estimate: NCCL's buffers for both directions of a connection, for each block.
  uint64_t communicator_bytes() const {
    return static_cast<uint64_t>(max_ctas > 0 ? max_ctas : 16) * (uint64_t{12} << 20);
  }
};

// A GPU of another process.
struct PeerDevice {
  DeviceId id = kNoDevice;
  uint64_t incarnation = 0;
  // Human-readable: "gpu:1 of node 3".
  std::string name;
  // Size of its pool for one-sided transfers, as published. 0: it has none.
  uint64_t put_bytes = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_CONTEXT_H_
