// SPDX-License-Identifier: Apache-2.0
// xxHash, header-only.
#include "tensor/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ferry {

uint64_t Checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

uint64_t Checksum(absl::Span<const absl::string_view> parts, uint64_t seed) {
  if (parts.size() == 1) {
    return XXH3_64bits_withSeed(parts[0].data(), parts[0].size(), seed);
  }
  XXH3_state_t state;
  // Without this, reset takes over an uninitialised seed and secret.
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset_withSeed(&state, seed);
  for (const absl::string_view part : parts) {
    // An empty view may have a null address.
    if (!part.empty()) XXH3_64bits_update(&state, part.data(), part.size());
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace ferry
