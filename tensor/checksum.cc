// SPDX-License-Identifier: Apache-2.0
// xxHash, compiled in.
#include "tensor/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ferry {

uint64_t Checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace ferry
