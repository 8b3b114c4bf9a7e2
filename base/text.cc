// SPDX-License-Identifier: Apache-2.0
// Quoting and durations for messages.
#include "base/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ferry {

std::string Quoted(absl::string_view bytes, size_t max_bytes) {
  if (bytes.size() <= max_bytes) return absl::StrCat("\"", absl::CEscape(bytes), "\"");
  const size_t half = max_bytes / 2;
  return absl::StrCat("\"", absl::CEscape(bytes.substr(0, half)), "...",
                      absl::CEscape(bytes.substr(bytes.size() - half)), "\" (", bytes.size(),
                      " bytes)");
}

std::string ShortDuration(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "forever";
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 0) return absl::StrCat("-", ShortDuration(-duration));
  // Each limit is where the unit would round up to the next one.
  if (seconds < 0.0009995) return absl::StrFormat("%.0fus", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.0fms", seconds * 1e3);
  if (seconds < 9.95) return absl::StrFormat("%.2gs", seconds);
  if (seconds < 99.5) return absl::StrFormat("%.0fs", seconds);
  const int64_t whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
}

}  // namespace ferry
