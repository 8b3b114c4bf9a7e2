// SPDX-License-Identifier: Apache-2.0
// Checksum of a tensor's bytes.
#ifndef FERRY_TENSOR_CHECKSUM_H_
#define FERRY_TENSOR_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace ferry {

// XXH3, 64 bits; the same in every process.
uint64_t Checksum(const void* data, size_t bytes);

}  // namespace ferry

#endif  // FERRY_TENSOR_CHECKSUM_H_
