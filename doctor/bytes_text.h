// SPDX-License-Identifier: Apache-2.0
// Formats memory sizes for findings.
#ifndef FERRY_DOCTOR_BYTES_TEXT_H_
#define FERRY_DOCTOR_BYTES_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ferry::doctor {

// "64 KiB", "1.5 GiB", "512 B".
inline std::string BytesText(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  const bool is_whole = value == static_cast<double>(static_cast<uint64_t>(value));
  return is_whole ? absl::StrFormat("%.0f %s", value, kUnits[unit])
                  : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_BYTES_TEXT_H_
