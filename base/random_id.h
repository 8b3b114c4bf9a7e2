// SPDX-License-Identifier: Apache-2.0
// RandomId: a number that identifies one incarnation, session or attempt.
#ifndef FERRY_BASE_RANDOM_ID_H_
#define FERRY_BASE_RANDOM_ID_H_

#include <cstdint>
#include <random>

namespace ferry {

// From the kernel's random generator; never 0. Unpredictable, within its 63 bits.
inline uint64_t RandomId() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace ferry

#endif  // FERRY_BASE_RANDOM_ID_H_
