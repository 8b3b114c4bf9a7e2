// SPDX-License-Identifier: Apache-2.0
// The makers of kernels, by family; kernel.cc has the table of them.
#ifndef FERRY_WORKER_KERNELS_FAMILIES_H_
#define FERRY_WORKER_KERNELS_FAMILIES_H_

#include <memory>

#include "absl/status/statusor.h"

#include "worker/kernel.h"
#include "worker/kernels/node_attrs.h"

namespace ferry::worker {

using KernelOr = absl::StatusOr<std::unique_ptr<Kernel>>;

// value_kernels.cc
KernelOr MakePlaceholder(const NodeAttrs& node);
KernelOr MakeConst(const NodeAttrs& node);
KernelOr MakeForward(const NodeAttrs& node);  // Identity, IdentityN, PlaceholderWithDefault
KernelOr MakeNoOp(const NodeAttrs& node);

}  // namespace ferry::worker

#endif  // FERRY_WORKER_KERNELS_FAMILIES_H_
