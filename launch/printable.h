// SPDX-License-Identifier: Apache-2.0
// Bytes from others, made fit for a terminal.
#ifndef FERRY_LAUNCH_PRINTABLE_H_
#define FERRY_LAUNCH_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ferry {

// For a line on a terminal: what does not print is escaped as in C, and so are bytes that are no
// UTF-8 and characters that turn the direction of writing. The rest of UTF-8 stays.
std::string Printable(absl::string_view bytes);

// The same for a text of lines: line feeds and tabs stay.
std::string PrintableText(absl::string_view bytes);

}  // namespace ferry

#endif  // FERRY_LAUNCH_PRINTABLE_H_
