// SPDX-License-Identifier: Apache-2.0
// The parameters of the kernels that Ferry launches. The driver is given their addresses alone, so
// that a record needs their sizes.
#ifndef FERRY_BENCHMARKS_GPU_CALLS_KERNEL_SHAPES_H_
#define FERRY_BENCHMARKS_GPU_CALLS_KERNEL_SHAPES_H_

#include <cstddef>
#include <string_view>

#include "gpu/kernels/elements.h"

namespace ferry::calls {

struct KernelShape {
  const char* name;
  size_t bytes[4];  // of each parameter, 0 after the last
};

inline constexpr KernelShape kKernelShapes[] = {
    {"ferry_pattern_fill", {8, 8, 8}},
    {"ferry_pattern_compare", {8, 8, 8, 8}},
    {"ferry_checksum", {8, 8, 8}},
    {"ferry_scale_add", {8, 8, 8, 4}},
    {"ferry_binary", {sizeof(cuda::BinaryCall)}},
    {"ferry_unary", {sizeof(cuda::UnaryCall)}},
    {"ferry_cast", {sizeof(cuda::CastCall)}},
    {"ferry_fill", {sizeof(cuda::FillCall)}},
    {"spin", {8}},
    {"nccl_spin", {8}},
};

// Returns null for an unknown kernel.
constexpr const KernelShape* FindKernelShape(std::string_view name) {
  for (const KernelShape& shape : kKernelShapes) {
    if (name == shape.name) return &shape;
  }
  return nullptr;
}

}  // namespace ferry::calls

#endif  // FERRY_BENCHMARKS_GPU_CALLS_KERNEL_SHAPES_H_
