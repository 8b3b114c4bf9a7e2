// SPDX-License-Identifier: Apache-2.0
// Checksum of a tensor's bytes.
#ifndef FERRY_TENSOR_CHECKSUM_H_
#define FERRY_TENSOR_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry {

// XXH3, 64 bits; the same in every process.
uint64_t Checksum(const void* data, size_t bytes);

// The checksum of the concatenated parts. Different seeds give different checksums.
uint64_t Checksum(absl::Span<const absl::string_view> parts, uint64_t seed);

}  // namespace ferry

#endif  // FERRY_TENSOR_CHECKSUM_H_
