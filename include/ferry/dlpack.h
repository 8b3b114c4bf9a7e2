// SPDX-License-Identifier: Apache-2.0
// DLPack: zero-copy exchange of tensors with other frameworks of the same process.
#ifndef FERRY_INCLUDE_FERRY_DLPACK_H_
#define FERRY_INCLUDE_FERRY_DLPACK_H_

#include "absl/status/statusor.h"

#include <ferry/namespace.h>
#include <ferry/tensor.h>

// Defined in dlpack.h, version 1.x, which programs include themselves.
struct DLManagedTensorVersioned;

namespace ferry {
FERRY_NAMESPACE_BEGIN

// Returns a view of `managed`, whose deleter is called when the last tensor that views it is
// released, on that thread. After an error the caller keeps ownership. The caller ensures that the
// elements are complete before they are sent or read: these structs carry no stream.
//   Errors: INVALID_ARGUMENT for null, another major version, memory of other devices than the host
//   and CUDA, elements that are not dense, row-major and aligned, elements of kBool that are
//   neither 0 nor 1, or an invalid shape; UNIMPLEMENTED for types that Ferry does not have.
absl::StatusOr<Tensor> ImportDlpack(DLManagedTensorVersioned* managed);

// Exports `tensor`. The caller owns the result and calls its deleter.
//   is_writable: false marks it as read-only, as a tensor that has been sent must be.
//   Errors: INVALID_ARGUMENT for an invalid tensor; UNIMPLEMENTED for strings.
absl::StatusOr<DLManagedTensorVersioned*> ExportDlpack(const Tensor& tensor,
                                                       bool is_writable = false);

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_DLPACK_H_
