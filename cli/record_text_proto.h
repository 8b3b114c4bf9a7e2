// SPDX-License-Identifier: Apache-2.0
// Values of the store for people.
#ifndef FERRY_CLI_RECORD_TEXT_PROTO_H_
#define FERRY_CLI_RECORD_TEXT_PROTO_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ferry::cli {

// An endpoint record, transfer report or pending report (proto/ferry_peer.proto) field by field;
// any other value escaped for a terminal.
std::string ValueText(absl::string_view key, absl::string_view value);

}  // namespace ferry::cli

#endif  // FERRY_CLI_RECORD_TEXT_PROTO_H_
