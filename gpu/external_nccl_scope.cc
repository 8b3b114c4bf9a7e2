// SPDX-License-Identifier: Apache-2.0
// ExternalNcclScope: a program's turn that ends with an event.
#include "gpu/external_nccl_scope.h"

#include <utility>

#include "absl/memory/memory.h"

#include "base/status_macros.h"
#include "gpu/cuda/cuda_event.h"

namespace ferry {

absl::StatusOr<std::unique_ptr<ExternalNcclScope>> ExternalNcclScope::Begin(
    Gpus& gpus, int ordinal, absl::Duration timeout) {
  FERRY_ASSIGN_OR_RETURN(Gpu* const gpu, gpus.Get(ordinal));
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<NcclTurn> turn,
                         NcclTurn::Take(gpus.nccl_arbiter(ordinal), gpus.gate(), timeout));
  return absl::WrapUnique(new ExternalNcclScope(*gpu, std::move(turn)));
}

absl::Status ExternalNcclScope::End(cuda::Stream stream) {
  std::shared_ptr<NcclTurn> turn = std::exchange(turn_, nullptr);
  if (turn == nullptr) {
    return absl::FailedPreconditionError("the scope of external NCCL work has ended already");
  }
  const cuda::ScopedCurrent current(*gpu_.device);
  FERRY_ASSIGN_OR_RETURN(std::shared_ptr<const cuda::ReadyEvent> passed,
                         cuda::ReadyEvent::Record(*gpu_.events, stream));
  return gpu_.nccl->Watch(
      {.event = std::move(passed), .what = "a program's NCCL work", .keep = std::move(turn)},
      [](absl::Status) {});
}

}  // namespace ferry
