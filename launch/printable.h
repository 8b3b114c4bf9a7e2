// SPDX-License-Identifier: Apache-2.0
// Escaping of untrusted bytes for a terminal.
#ifndef FERRY_LAUNCH_PRINTABLE_H_
#define FERRY_LAUNCH_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ferry {

// For a single line on a terminal: escapes, as in C, nonprintable characters, invalid UTF-8, and
// characters that change the writing direction. Other UTF-8 is kept.
std::string Printable(absl::string_view bytes);

// The same for multi-line text: line feeds and tabs are kept.
std::string PrintableText(absl::string_view bytes);

}  // namespace ferry

#endif  // FERRY_LAUNCH_PRINTABLE_H_
