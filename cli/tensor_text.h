// SPDX-License-Identifier: Apache-2.0
// Formats tensors for users.
#ifndef FERRY_CLI_TENSOR_TEXT_H_
#define FERRY_CLI_TENSOR_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace ferry::cli {

// Returns "float[2,2] [[1, 2], [3, 4]]"; beyond `max_elements` only the first ones, and how many
// follow. Strings are quoted, long ones shortened. REQUIRES: valid, in host memory.
std::string TensorText(const Tensor& tensor, int64_t max_elements);

// Returns one element: "1.5", "true", "(1, -2)", "\"text\""; "?" for non-numeric types.
std::string ElementText(const Tensor& tensor, int64_t index);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TENSOR_TEXT_H_
