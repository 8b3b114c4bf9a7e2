// SPDX-License-Identifier: Apache-2.0
// Conversions from integers and bool.
#include "tensorflow/worker/kernels/cast_elements.h"

namespace ferry::worker {

CastFunction CastFromInteger(DataType from, DataType to) {
  return FindCast(SignedTypes() + UnsignedTypes() + TypeSet<bool>(), from, to);
}

}  // namespace ferry::worker
