// SPDX-License-Identifier: Apache-2.0
// Marking errors as derived.
#include "rendezvous/value.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ferry {
namespace {

// TensorFlow's mark, which its masters look for. Source: tensorflow/core/platform/status.cc.
constexpr absl::string_view kPrefix = "[_Derived_]";

}  // namespace

absl::Status MakeDerived(const absl::Status& status) {
  if (status.ok() || IsDerived(status)) return status;
  return absl::Status(status.code(), absl::StrCat(kPrefix, status.message()));
}

bool IsDerived(const absl::Status& status) { return absl::StartsWith(status.message(), kPrefix); }

absl::Status WithoutDerivedMark(const absl::Status& status) {
  if (!IsDerived(status)) return status;
  return absl::Status(status.code(), absl::StripPrefix(status.message(), kPrefix));
}

}  // namespace ferry
