// SPDX-License-Identifier: Apache-2.0
// Kernel factories by family; kernel.cc has the table of them.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_FAMILIES_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_FAMILIES_H_

#include <memory>

#include "absl/status/statusor.h"

#include "tensorflow/worker/kernel.h"
#include "tensorflow/worker/kernels/node_attrs.h"

namespace ferry::worker {

using KernelOr = absl::StatusOr<std::unique_ptr<Kernel>>;

// value_kernels.cc
KernelOr MakePlaceholder(const NodeAttrs& node);
KernelOr MakeConst(const NodeAttrs& node);
KernelOr MakeForward(const NodeAttrs& node);  // Identity, IdentityN, PlaceholderWithDefault
KernelOr MakeNoOp(const NodeAttrs& node);

// shape_kernels.cc
KernelOr MakeReshape(const NodeAttrs& node);
KernelOr MakeExpandDims(const NodeAttrs& node);
KernelOr MakeSqueeze(const NodeAttrs& node);
KernelOr MakeShape(const NodeAttrs& node);
KernelOr MakeRank(const NodeAttrs& node);

// fill_kernels.cc
KernelOr MakeFill(const NodeAttrs& node);
KernelOr MakeZerosLike(const NodeAttrs& node);
KernelOr MakeOnesLike(const NodeAttrs& node);
KernelOr MakeRange(const NodeAttrs& node);

// join_kernels.cc, transpose_kernels.cc
KernelOr MakePack(const NodeAttrs& node);
KernelOr MakeConcat(const NodeAttrs& node);
KernelOr MakeUnpack(const NodeAttrs& node);
KernelOr MakeSplit(const NodeAttrs& node);
KernelOr MakeSlice(const NodeAttrs& node);
KernelOr MakeTranspose(const NodeAttrs& node);

// add_kernels.cc, mul_kernels.cc, order_kernels.cc
KernelOr MakeAdd(const NodeAttrs& node);  // AddV2 as well
KernelOr MakeSub(const NodeAttrs& node);
KernelOr MakeAddN(const NodeAttrs& node);
KernelOr MakeMul(const NodeAttrs& node);
KernelOr MakeRealDiv(const NodeAttrs& node);
KernelOr MakeMaximum(const NodeAttrs& node);
KernelOr MakeMinimum(const NodeAttrs& node);

// unary_kernels.cc, cast_kernels.cc, matmul_kernels.cc
KernelOr MakeNeg(const NodeAttrs& node);
KernelOr MakeSqrt(const NodeAttrs& node);
KernelOr MakeCast(const NodeAttrs& node);
KernelOr MakeMatMul(const NodeAttrs& node);

// sum_kernels.cc, extreme_kernels.cc
KernelOr MakeSum(const NodeAttrs& node);
KernelOr MakeMean(const NodeAttrs& node);
KernelOr MakeMax(const NodeAttrs& node);
KernelOr MakeMin(const NodeAttrs& node);

// random_kernels.cc
KernelOr MakeRandomUniform(const NodeAttrs& node);
KernelOr MakeRandomStandardNormal(const NodeAttrs& node);

// variable_kernels.cc
KernelOr MakeVarHandle(const NodeAttrs& node);
KernelOr MakeAssignVariable(const NodeAttrs& node);
KernelOr MakeAssignAddVariable(const NodeAttrs& node);
KernelOr MakeReadVariable(const NodeAttrs& node);
KernelOr MakeVarIsInitialized(const NodeAttrs& node);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_FAMILIES_H_
