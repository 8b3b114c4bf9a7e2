// SPDX-License-Identifier: Apache-2.0
// The byte pattern that probes of GPU memory write and verify.
#ifndef FERRY_DOCTOR_PROBE_PATTERN_H_
#define FERRY_DOCTOR_PROBE_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferry::doctor {

// Each seed has a distinct pattern, so that remains of an earlier probe do not pass as success.
inline std::vector<unsigned char> ProbePattern(size_t bytes, uint64_t seed) {
  std::vector<unsigned char> pattern(bytes);
  uint64_t word = seed | 1;
  for (unsigned char& byte : pattern) {
    // Xorshift: any sequence with a long period would do.
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    byte = static_cast<unsigned char>(word >> 32);
  }
  return pattern;
}

// Returns the number of bytes that differ. REQUIRES: equal sizes.
inline size_t CountDifferences(const std::vector<unsigned char>& a,
                               const std::vector<unsigned char>& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_PROBE_PATTERN_H_
