// SPDX-License-Identifier: Apache-2.0
// Test patterns that verify transferred bytes.
#ifndef FERRY_CLI_PATTERN_H_
#define FERRY_CLI_PATTERN_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "tensor/data_type.h"

namespace ferry::cli {

// Different names, steps or rounds have different seeds, up to a chance of 2^-64.
uint64_t PatternSeed(absl::string_view name, uint64_t step, uint64_t round = 0);

// Word i of the pattern is seed + i times an odd number. No word repeats, so stale, shifted or
// missing data is detected. Runs at memory bandwidth.
//   mask: bits of each word that are kept; 0x0101... makes booleans of it.
void WritePattern(void* to, size_t bytes, uint64_t seed, uint64_t mask = ~uint64_t{0});

// Returns the number of wrong bytes; stores the offset of the first one in `first_wrong`, unless
// null.
size_t CountPatternErrors(const void* from, size_t bytes, uint64_t seed,
                          size_t* first_wrong = nullptr, uint64_t mask = ~uint64_t{0});

// Returns the mask for elements of the type.
uint64_t PatternMask(DataType dtype);

// Reads every byte; the result depends on all of them. Runs at memory bandwidth.
uint64_t ReadEveryByte(const void* from, size_t bytes);

}  // namespace ferry::cli

#endif  // FERRY_CLI_PATTERN_H_
