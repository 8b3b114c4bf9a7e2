// SPDX-License-Identifier: Apache-2.0
// The first host of a job whose launcher names no coordinator; for identity.cc.
#ifndef FERRY_NODE_FIRST_HOST_H_
#define FERRY_NODE_FIRST_HOST_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "node/launcher_identity.h"

namespace ferry::identity_internal {

// See Identity::first_host.
//   Errors: INVALID_ARGUMENT naming the variable.
absl::StatusOr<std::optional<Sourced<std::string>>> FirstHost(const EnvReader& reader,
                                                              const LauncherIdentity& identity);

// See Identity::port_hint.
std::optional<Sourced<int>> PortHint(const EnvReader& reader, LauncherKind kind);

// FNV-1a, because the processes of a job may not all run the same build of the standard library.
uint64_t HashText(absl::string_view text);

}  // namespace ferry::identity_internal

#endif  // FERRY_NODE_FIRST_HOST_H_
