// SPDX-License-Identifier: Apache-2.0
// STRICT_CUDA_EXPORT: symbols of the fake driver that dlsym finds; all others are hidden.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_EXPORT_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_EXPORT_H_

#define STRICT_CUDA_EXPORT __attribute__((visibility("default")))

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_EXPORT_H_
