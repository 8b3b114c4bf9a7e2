// SPDX-License-Identifier: Apache-2.0
// Bytes that cannot be right by chance, for checking what was moved.
#ifndef FERRY_CLI_PATTERN_H_
#define FERRY_CLI_PATTERN_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "tensor/data_type.h"

namespace ferry::cli {

// Any two names, steps or rounds have other seeds, but for one chance in 2^64.
uint64_t PatternSeed(absl::string_view name, uint64_t step, uint64_t round = 0);

// Word i of the pattern is seed + i times an odd number: no word is there twice, so what is late,
// left over from another round, shifted or missing is seen. As fast as memory.
//   mask: bits of each word that are kept; 0x0101... makes booleans of it.
void WritePattern(void* to, size_t bytes, uint64_t seed, uint64_t mask = ~uint64_t{0});

// How many bytes are wrong; the first of them goes to `first_wrong` unless that is null.
size_t CountPatternErrors(const void* from, size_t bytes, uint64_t seed,
                          size_t* first_wrong = nullptr, uint64_t mask = ~uint64_t{0});

// The mask for elements of the type.
uint64_t PatternMask(DataType dtype);

// Looks at every byte; what that comes to depends on all of them. As fast as memory.
uint64_t ReadEveryByte(const void* from, size_t bytes);

}  // namespace ferry::cli

#endif  // FERRY_CLI_PATTERN_H_
