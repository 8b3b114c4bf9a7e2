// SPDX-License-Identifier: Apache-2.0
// NcclBracket: NCCL work of the program that Ferry does not issue.
#ifndef FERRY_GPU_NCCL_BRACKET_H_
#define FERRY_GPU_NCCL_BRACKET_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/cuda/driver_types.h"
#include "gpu/gpus.h"
#include "gpu/nccl_arbiter.h"

namespace ferry {

// Ferry knows the NCCL work that it issues. Around other work, of PyTorch's or JAX's own NCCL, the
// program opens a bracket, which takes the device's turn as NcclCommunicator::Run does: until the
// bracketed work has completed, no keyed transfer over NCCL starts on the device (after a second
// they use other paths), and no call is made that may synchronize the process's devices. Not
// thread-safe.
class NcclBracket final {
 public:
  // Blocks until keyed transfers over NCCL on the device have completed.
  //   gpus: outlives the result.
  //   Errors: as Gpus::Get and NcclArbiter::Await.
  static absl::StatusOr<std::unique_ptr<NcclBracket>> Open(Gpus& gpus, int ordinal,
                                                           absl::Duration timeout);
  // Without Close: nothing was enqueued, and the turn ends now.
  ~NcclBracket() = default;

  NcclBracket(const NcclBracket&) = delete;
  NcclBracket& operator=(const NcclBracket&) = delete;

  // The work has been enqueued on `stream`, by calls that have returned and, of a non-blocking
  // communicator, are no longer in progress. The turn ends when the stream has passed it. Does not
  // block.
  //   Errors: FAILED_PRECONDITION it is closed already; INTERNAL with the driver's error: the turn
  //   then ends now.
  absl::Status Close(cuda::Stream stream);

 private:
  NcclBracket(Gpu& gpu, std::shared_ptr<NcclTurn> turn) : gpu_(gpu), turn_(std::move(turn)) {}

  Gpu& gpu_;
  std::shared_ptr<NcclTurn> turn_;
};

}  // namespace ferry

#endif  // FERRY_GPU_NCCL_BRACKET_H_
