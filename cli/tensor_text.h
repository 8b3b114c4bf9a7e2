// SPDX-License-Identifier: Apache-2.0
// Tensors as people read them.
#ifndef FERRY_CLI_TENSOR_TEXT_H_
#define FERRY_CLI_TENSOR_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace ferry::cli {

// "float[2,2] [[1, 2], [3, 4]]"; of more than `max_elements` the first ones, and how many follow.
// Strings are quoted, long ones shortened. REQUIRES: valid, on the host.
std::string TensorText(const Tensor& tensor, int64_t max_elements);

// One element: "1.5", "true", "(1, -2)", "\"text\""; "?" of types that have no numbers.
std::string ElementText(const Tensor& tensor, int64_t index);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TENSOR_TEXT_H_
