// SPDX-License-Identifier: Apache-2.0
// Tensors given by flags: type, shape and content.
#ifndef FERRY_CLI_FILL_H_
#define FERRY_CLI_FILL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "tensor/data_type.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

namespace ferry::cli {

// Parses "float", "bfloat16", ...; types of fixed size.
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<DataType> ParseDtypeFlag(absl::string_view text);
// Parses "2x3"; "scalar".
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<Shape> ParseShapeFlag(absl::string_view text);

// Checks that elements of that type can be filled with `fill`: see Fill.
//   Errors: INVALID_ARGUMENT for unknown text, a non-numeric type, or a number out of the type's
//   range.
absl::Status CheckFill(DataType dtype, absl::string_view fill);

// Sets every element: "pattern" (see WritePattern), "zeros", "ones", "seq" (0, 1, 2, ..., up to the
// type's range), or a number.
//   Errors: as CheckFill.
absl::Status Fill(Tensor& tensor, absl::string_view fill, uint64_t pattern_seed);

// Returns false if the type is not numeric. Integers wrap around.
//   to: one element.
bool StoreNumber(DataType dtype, void* to, double value);

}  // namespace ferry::cli

#endif  // FERRY_CLI_FILL_H_
