// SPDX-License-Identifier: Apache-2.0
// Mul and RealDiv.
#include "tensorflow/worker/kernels/binary.h"

namespace ferry::worker {

KernelOr MakeMul(const NodeAttrs& node) { return MakeBinary<MulElements>(NumberTypes(), node); }

KernelOr MakeRealDiv(const NodeAttrs& node) {
  return MakeBinary<DivElements>(RealTypes() + ComplexTypes(), node);
}

}  // namespace ferry::worker
