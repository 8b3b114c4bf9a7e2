// SPDX-License-Identifier: Apache-2.0
// What keyed transfers over NCCL need of the job, and how they can be tuned.
#ifndef FERRY_TRANSPORT_NCCL_NCCL_CONTEXT_H_
#define FERRY_TRANSPORT_NCCL_NCCL_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "gpu/clique/communicator.h"
#include "gpu/nccl/nccl_api.h"
#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// Of a job; absent parts are reasons why NCCL is not used. A value.
struct NcclJob {
  // Null: `why_no_library` says why.
  std::shared_ptr<const nccl::NcclApi> library;
  std::string why_no_library;
  // Where the ranks of a clique find together; null: this process has joined no job.
  CliqueStoreFactory store;
  // The job's id of a GPU of a node, the same on all nodes; nothing: the topology has no such GPU.
  std::function<std::optional<DeviceId>(int32_t node_id, int ordinal)> device_of;
};

struct NcclTransportOptions {
  // What the communicators of one GPU may take of its memory: each is taken for what the GPU's free
  // memory fell by at most while one was made and first used, and at least for
  // communicator_bytes(). Those that were used longest ago make room. 0: NCCL moves no keyed
  // tensors.
  uint64_t memory_bytes = uint64_t{1} << 30;
  // What a transfer takes besides its bytes: a grant, its answer, a launch on either side, and
  // their ends being noticed. More than copies through the host's memory take for what is small, up
  // to about 150 KB.
  absl::Duration assumed_latency = absl::Microseconds(150);
  // Of each communicator: how many blocks of the GPU its kernels take.
  int max_ctas = 8;
  // For both sides to come, and for the communicator to be made.
  absl::Duration open_timeout = absl::Seconds(30);
  // A transfer that takes longer once both sides know of it: its communicator is aborted, and the
  // tensor goes another way.
  absl::Duration transfer_timeout = absl::Seconds(60);
  // For NCCL to let go of communicators when this process leaves.
  absl::Duration abort_timeout = absl::Seconds(30);
  BatchAgreementOptions grants;

  // Estimated: NCCL's buffers for both directions of a connection, for each block.
  uint64_t communicator_bytes() const {
    return static_cast<uint64_t>(max_ctas > 0 ? max_ctas : 16) * (uint64_t{12} << 20);
  }
};

// A GPU of another process.
struct PeerDevice {
  DeviceId id = kNoDevice;
  uint64_t incarnation = 0;
  // "gpu:1 of node 3": for people.
  std::string name;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_NCCL_CONTEXT_H_
