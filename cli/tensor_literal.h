// SPDX-License-Identifier: Apache-2.0
// Tensors that users write down or have in files.
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

// What a tensor has to be. A dimension of -1 may be any; no `dims`: the rank may be any.
struct WantedTensor {
  DataType dtype = DataType::kInvalid;
  std::optional<std::vector<int64_t>> dims;
};

// "float[?,3]", "int32 of any shape".
std::string ToString(const WantedTensor& wanted);

// "1.5", "[[1, 2], [3, 4]]", "true", "nan"; for strings also any other text, which is one string.
//   Errors: INVALID_ARGUMENT for what is no such number, rows of unequal lengths, or another shape.
absl::StatusOr<Tensor> ParseTensor(absl::string_view text, const WantedTensor& wanted);

// A file of NumPy's (.npy, C order, little endian), or the elements as they are in memory, from
// which one unknown dimension is counted.
//   Errors: NOT_FOUND, UNAVAILABLE for a file that cannot be read; INVALID_ARGUMENT for another
//   type or shape, or strings.
absl::StatusOr<Tensor> ReadTensorFile(const std::string& path, const WantedTensor& wanted);

// The whole of a file, "-" being stdin.
//   Errors: NOT_FOUND, UNAVAILABLE, with the reason.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TENSOR_LITERAL_H_
