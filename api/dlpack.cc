// SPDX-License-Identifier: Apache-2.0
// The structs of DLPack are those of tensor/dlpack.h under their own names.
#include <ferry/dlpack.h>

#include <utility>

#include "api/api_access.h"
#include "base/status_macros.h"
#include "tensor/dlpack.h"

namespace ferry::v0 {

absl::StatusOr<Tensor> ImportDlpack(DLManagedTensorVersioned* managed) {
  FERRY_ASSIGN_OR_RETURN(ferry::Tensor tensor,
                         dlpack::Import(reinterpret_cast<dlpack::ManagedTensor*>(managed)));
  return ApiAccess::Wrap(std::move(tensor));
}

absl::StatusOr<DLManagedTensorVersioned*> ExportDlpack(const Tensor& tensor, bool is_writable) {
  FERRY_ASSIGN_OR_RETURN(dlpack::ManagedTensor* const managed,
                         dlpack::Export(ApiAccess::Unwrap(tensor), is_writable));
  return reinterpret_cast<DLManagedTensorVersioned*>(managed);
}

}  // namespace ferry::v0
