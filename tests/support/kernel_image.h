// SPDX-License-Identifier: Apache-2.0
// An image of kernels for tests: the fake driver knows them by name, and needs no compiler.
#ifndef FERRY_TESTS_SUPPORT_KERNEL_IMAGE_H_
#define FERRY_TESTS_SUPPORT_KERNEL_IMAGE_H_

#include "absl/strings/string_view.h"

#include "gpu/kernels/embedded.h"
#include "tests/support/real_gpu.h"

namespace ferry {

// The image embedded in this build, and with the fake driver all kernels of gpu/kernels even if it
// has none.
inline cuda::CompiledKernels KernelImage() {
  constexpr absl::string_view kNames =
      ".version 7.0\n.visible .entry ferry_pattern_fill() {}\n"
      ".visible .entry ferry_pattern_compare() {}\n.visible .entry ferry_checksum() {}\n"
      ".visible .entry ferry_scale_add() {}\n.visible .entry ferry_binary() {}\n"
      ".visible .entry ferry_unary() {}\n.visible .entry ferry_cast() {}\n"
      ".visible .entry ferry_fill() {}\n";
  return OnRealGpu() ? cuda::EmbeddedKernels() : cuda::CompiledKernels(kNames);
}

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_KERNEL_IMAGE_H_
