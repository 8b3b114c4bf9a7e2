// SPDX-License-Identifier: Apache-2.0
// Memory access for the fake driver's kernels, as the processors of a device reach it.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_KERNELS_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/strict_cuda/context.h"
#include "tests/support/strict_cuda/memory.h"

namespace strict_cuda {

inline constexpr const char* kLaunchCall = "cuLaunchKernel";

// By the processors of the stream's device. Null after a failure.
std::unique_ptr<Use> Access(Context& context, uint64_t pointer, size_t bytes, bool is_write);
// Access to unaligned words fails the context.
bool IsAligned(Context& context, uint64_t pointer, uint64_t to);
// The bytes, which may lie in several pieces.
std::string Gather(const Use& use);
void Scatter(const std::string& bytes, const Use& use);

// One parameter each: a call as gpu/kernels/elements.h has it.
void Binary(Context& context, const std::vector<uint64_t>& parameters);
void Unary(Context& context, const std::vector<uint64_t>& parameters);
void Cast(Context& context, const std::vector<uint64_t>& parameters);
void Fill(Context& context, const std::vector<uint64_t>& parameters);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_KERNELS_H_
