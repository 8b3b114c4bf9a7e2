// SPDX-License-Identifier: Apache-2.0
// ExternalNcclScope: encloses NCCL work that the program issues itself.
#ifndef FERRY_GPU_EXTERNAL_NCCL_SCOPE_H_
#define FERRY_GPU_EXTERNAL_NCCL_SCOPE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/cuda/driver_types.h"
#include "gpu/gpus.h"
#include "gpu/nccl_arbiter.h"

namespace ferry {

// Ferry knows the NCCL work that it issues. External work, as of PyTorch's or JAX's own NCCL, the
// program encloses in a scope, which takes the device's turn as NcclCommunicator::Run does: until
// the enclosed work has completed, no keyed transfer over NCCL starts on the device (after a second
// they use other paths), and no call is made that may synchronize the process's devices. Not
// thread-safe.
class ExternalNcclScope final {
 public:
  // Blocks until keyed transfers over NCCL on the device have completed.
  //   gpus: outlives the result.
  //   Errors: as Gpus::Get and NcclArbiter::Await.
  static absl::StatusOr<std::unique_ptr<ExternalNcclScope>> Begin(Gpus& gpus, int ordinal,
                                                                  absl::Duration timeout);
  // Without End: nothing was enqueued, and the turn ends now.
  ~ExternalNcclScope() = default;

  ExternalNcclScope(const ExternalNcclScope&) = delete;
  ExternalNcclScope& operator=(const ExternalNcclScope&) = delete;

  // The work has been enqueued on `stream`, by calls that have returned and, of a non-blocking
  // communicator, are no longer in progress. The turn ends when the stream has passed it. Does not
  // block.
  //   Errors: FAILED_PRECONDITION it has ended already; INTERNAL with the driver's error: the turn
  //   then ends now.
  absl::Status End(cuda::Stream stream);

 private:
  ExternalNcclScope(Gpu& gpu, std::shared_ptr<NcclTurn> turn) : gpu_(gpu), turn_(std::move(turn)) {}

  Gpu& gpu_;
  std::shared_ptr<NcclTurn> turn_;
};

}  // namespace ferry

#endif  // FERRY_GPU_EXTERNAL_NCCL_SCOPE_H_
