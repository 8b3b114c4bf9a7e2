// SPDX-License-Identifier: Apache-2.0
// Conversion of arrays between types.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_CAST_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_CAST_H_

#include <cstdint>

#include "tensor/data_type.h"

namespace ferry::worker {

// Converts `count` elements. The arrays must not overlap.
using CastFunction = void (*)(const void* from, void* to, int64_t count);

// Maps quantized types to their underlying integers; other types to themselves.
DataType PlainType(DataType dtype);

// Return null for unsupported types, and for a type to itself if that needs no conversion.
//   truncates: cut mantissas instead of rounding, between the types for which TensorFlow does so.
CastFunction CastFromReal(DataType from, DataType to, bool truncates);     // floats
CastFunction CastFromInteger(DataType from, DataType to);                  // integers, bool
CastFunction CastFromComplex(DataType from, DataType to, bool truncates);  // complex numbers

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_CAST_H_
