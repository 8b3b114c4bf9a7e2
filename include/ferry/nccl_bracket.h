// SPDX-License-Identifier: Apache-2.0
// NcclBracket: a scope in which a program enqueues NCCL work that Ferry does not issue.
#ifndef FERRY_INCLUDE_FERRY_NCCL_BRACKET_H_
#define FERRY_INCLUDE_FERRY_NCCL_BRACKET_H_

#include <memory>

#include "absl/status/status.h"

#include <ferry/namespace.h>

// CUstream and cudaStream_t point to it.
struct CUstream_st;

namespace ferry {
FERRY_NAMESPACE_BEGIN

// Made by Node::OpenNcclBracket; the Node must outlive it. For programs with an NCCL of their own,
// such as PyTorch's process group: Ferry does not see that work, and maps, unmaps or allocates GPU
// memory beside it, for which the driver may wait until the work has completed. If the work waits
// for another process, and that for this one, none of them continues.
//
// From Node::OpenNcclBracket until the bracketed work has completed, Ferry makes no call that may
// wait for GPUs of this process, and moves no tensors over NCCL on that GPU: those wait for a
// second at most, and then use another transport. What needs more memory from the driver meanwhile
// fails with DEADLINE_EXCEEDED after 5 seconds: reserve memory
// (TransferOptions::gpu_reserve_bytes), and keep brackets short. Not thread-safe; several may be
// open.
class NcclBracket {
 public:
  // Without Close: nothing was enqueued.
  ~NcclBracket();

  NcclBracket(const NcclBracket&) = delete;
  NcclBracket& operator=(const NcclBracket&) = delete;

  // The work has been enqueued on `stream`, which is of the bracket's GPU. Work on several streams:
  // let this one wait for events of the others. The calls of NCCL have returned, and are not in
  // progress (ncclInProgress). Does not block.
  //   Errors: FAILED_PRECONDITION it is closed already, or the node is leaving; RESOURCE_EXHAUSTED
  //   too many events are pending; INTERNAL with the driver's error. After an error the bracket has
  //   ended without waiting for the work.
  absl::Status Close(CUstream_st* stream);

 private:
  class Impl;
  friend class ApiAccess;

  explicit NcclBracket(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_NCCL_BRACKET_H_
