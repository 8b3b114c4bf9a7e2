// SPDX-License-Identifier: Apache-2.0
// Maximum and Minimum of two tensors.
#include "tensorflow/worker/kernels/binary.h"

namespace ferry::worker {

KernelOr MakeMaximum(const NodeAttrs& node) {
  return MakeBinary<MaxElements>(OrderedTypes(), node);
}

KernelOr MakeMinimum(const NodeAttrs& node) {
  return MakeBinary<MinElements>(OrderedTypes(), node);
}

}  // namespace ferry::worker
