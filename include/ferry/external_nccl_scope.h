// SPDX-License-Identifier: Apache-2.0
// ExternalNcclScope: encloses NCCL work that the program issues itself, not through Ferry.
#ifndef FERRY_INCLUDE_FERRY_EXTERNAL_NCCL_SCOPE_H_
#define FERRY_INCLUDE_FERRY_EXTERNAL_NCCL_SCOPE_H_

#include <memory>

#include "absl/status/status.h"

#include <ferry/namespace.h>

// CUstream and cudaStream_t point to it.
struct CUstream_st;

namespace ferry {
FERRY_NAMESPACE_BEGIN

// Made by Node::BeginExternalNccl; the Node must outlive it. For programs with an NCCL of their
// own, such as PyTorch's process group: Ferry does not see that work, and maps, unmaps or allocates
// GPU memory beside it, for which the driver may wait until the work has completed. If the work
// waits for another process, and that for this one, none of them continues.
//
// From Node::BeginExternalNccl until the enclosed work has completed, Ferry makes no call that may
// wait for GPUs of this process, and moves no tensors over NCCL on that GPU: those wait for a
// second at most, and then use another transport. What needs more memory from the driver meanwhile
// fails with DEADLINE_EXCEEDED after 5 seconds: reserve memory
// (TransferOptions::gpu_reserve_bytes), and keep scopes short. Not thread-safe; several may
// overlap.
class ExternalNcclScope {
 public:
  // Without End: nothing was enqueued.
  ~ExternalNcclScope();

  ExternalNcclScope(const ExternalNcclScope&) = delete;
  ExternalNcclScope& operator=(const ExternalNcclScope&) = delete;

  // The work has been enqueued on `stream`, which is of the scope's GPU. Work on several streams:
  // let this one wait for events of the others. The calls of NCCL have returned, and are not in
  // progress (ncclInProgress). Does not block.
  //   Errors: FAILED_PRECONDITION it has ended already, or the node is leaving; RESOURCE_EXHAUSTED
  //   too many events are pending; INTERNAL with the driver's error. After an error the scope has
  //   ended without waiting for the work.
  absl::Status End(CUstream_st* stream);

 private:
  class Impl;
  friend class ApiAccess;

  explicit ExternalNcclScope(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_EXTERNAL_NCCL_SCOPE_H_
