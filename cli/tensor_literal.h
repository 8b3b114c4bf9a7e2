// SPDX-License-Identifier: Apache-2.0
// Tensors given as literals or files.
#ifndef FERRY_CLI_TENSOR_LITERAL_H_
#define FERRY_CLI_TENSOR_LITERAL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "tensor/data_type.h"
#include "tensor/tensor.h"

namespace ferry::cli {

// The required type and shape. A dimension of -1 is unknown; no `dims`: unknown rank.
struct WantedTensor {
  DataType dtype = DataType::kInvalid;
  std::optional<std::vector<int64_t>> dims;
};

// "float[?,3]", "int32 of any shape".
std::string ToString(const WantedTensor& wanted);

// Parses "1.5", "[[1, 2], [3, 4]]", "true", "nan"; for strings also any other text, as one string.
//   Errors: INVALID_ARGUMENT for malformed or out-of-range numbers, rows of unequal lengths, or
//   another shape.
absl::StatusOr<Tensor> ParseTensor(absl::string_view text, const WantedTensor& wanted);

// Reads a NumPy file (.npy, C order, little-endian), or raw elements, from whose size one unknown
// dimension is derived.
//   Errors: NOT_FOUND, UNAVAILABLE if the file cannot be read; INVALID_ARGUMENT for another type or
//   shape, or strings.
absl::StatusOr<Tensor> ReadTensorFile(const std::string& path, const WantedTensor& wanted);

// Reads a whole file; "-" is stdin.
//   Errors: NOT_FOUND, UNAVAILABLE, with the reason.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TENSOR_LITERAL_H_
