// SPDX-License-Identifier: Apache-2.0
// Arrays of one type from arrays of another.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_CAST_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_CAST_H_

#include <cstdint>

#include "tensor/data_type.h"

namespace ferry::worker {

// Converts `count` elements. Must not overlap.
using CastFunction = void (*)(const void* from, void* to, int64_t count);

// Quantized numbers are converted as what they are made of; other types are what they are.
DataType PlainType(DataType dtype);

// Null for types that are not converted, and for a type to itself where that is no conversion.
//   truncates: mantissas that are too long are cut instead of rounded, between those types for
//   which TensorFlow does so.
CastFunction CastFromReal(DataType from, DataType to, bool truncates);     // floats
CastFunction CastFromInteger(DataType from, DataType to);                  // integers, bool
CastFunction CastFromComplex(DataType from, DataType to, bool truncates);  // complex numbers

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_CAST_H_
