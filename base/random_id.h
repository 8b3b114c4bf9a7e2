// SPDX-License-Identifier: Apache-2.0
// RandomId: a number that tells one life, session or attempt from all others.
#ifndef FERRY_BASE_RANDOM_ID_H_
#define FERRY_BASE_RANDOM_ID_H_

#include <cstdint>
#include <random>

namespace ferry {

// From the kernel; never 0. Not to be guessed, as far as 63 bits go.
inline uint64_t RandomId() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace ferry

#endif  // FERRY_BASE_RANDOM_ID_H_
