// SPDX-License-Identifier: Apache-2.0
// Checks that the bytes of a tensor are valid elements of its type.
#ifndef FERRY_TENSOR_CHECK_VALUES_H_
#define FERRY_TENSOR_CHECK_VALUES_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "tensor/tensor.h"

namespace ferry {

// Returns the index of the first of `count` bytes that is neither 0 nor 1. One pass, at memory
// bandwidth.
//   first: may be null if `count` is 0.
std::optional<size_t> FindNonBoolean(const void* first, size_t count);

// True if some bit patterns are not elements of the type: among fixed-size types, only for
// booleans. Types narrower than a byte are stored in one byte each, whose upper bits are ignored.
inline bool HasIllegalBits(DataType dtype) { return dtype == DataType::kBool; }

// Returns OK, or INVALID_ARGUMENT with the index of the first element that is invalid for the
// tensor's type: "element 2 of bool[4] is 255, and a boolean is 0 or 1". Call it on every tensor
// made from bytes from outside the process, before any other use: a C++ bool of another value is
// undefined behaviour, and becomes a number when it is cast. Tensors in device memory cannot be
// checked here, and return OK.
absl::Status CheckValues(const Tensor& tensor);

// As above, for bytes that are not a tensor yet.
//   describe: returns the text for an error, such as "bool[4]".
absl::Status CheckValues(DataType dtype, const void* first, size_t bytes,
                         absl::FunctionRef<std::string()> describe);

// Copies `bytes` bytes and checks them in the same pass; the ranges must not overlap.
//   Errors: as CheckValues; `to` then holds the bytes before the first invalid one.
absl::Status CopyValues(DataType dtype, const void* from, size_t bytes, void* to,
                        absl::FunctionRef<std::string()> describe);

}  // namespace ferry

#endif  // FERRY_TENSOR_CHECK_VALUES_H_
