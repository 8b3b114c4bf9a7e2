// SPDX-License-Identifier: Apache-2.0
// Tensors from a command line: their type, their shape and what is in them.
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

// "float", "bfloat16", ...; of fixed size.
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<DataType> ParseDtypeFlag(absl::string_view text);
// "2x3"; "scalar".
//   Errors: INVALID_ARGUMENT, naming the flag.
absl::StatusOr<Shape> ParseShapeFlag(absl::string_view text);

// Whether elements of that type can be filled so: see Fill.
//   Errors: INVALID_ARGUMENT for something else, for a type whose elements are no such numbers, and
//   for a number that the type has not.
absl::Status CheckFill(DataType dtype, absl::string_view fill);

// Sets every element: "pattern" (see WritePattern), "zeros", "ones", "seq" (0, 1, 2, ..., as far
// as the type can count), or a number.
//   Errors: those of CheckFill.
absl::Status Fill(Tensor& tensor, absl::string_view fill, uint64_t pattern_seed);

// Whether the type has such numbers. Whole ones wrap around.
//   to: one element.
bool StoreNumber(DataType dtype, void* to, double value);

}  // namespace ferry::cli

#endif  // FERRY_CLI_FILL_H_
