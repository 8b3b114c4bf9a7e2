// SPDX-License-Identifier: Apache-2.0
// Text for people: quoted keys, short durations.
#ifndef FERRY_BASE_TEXT_H_
#define FERRY_BASE_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry {

// `bytes` escaped for a terminal or an error message, at most about `max_bytes` long.
// Longer ones keep both ends and say how much is left out.
std::string Quoted(absl::string_view bytes, size_t max_bytes = 120);

// A duration to about two figures: "3ms", "1.2s", "41s", "2m05s".
std::string ShortDuration(absl::Duration duration);

}  // namespace ferry

#endif  // FERRY_BASE_TEXT_H_
