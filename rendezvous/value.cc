// SPDX-License-Identifier: Apache-2.0
// Marking of derived errors.
#include "rendezvous/value.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ferry {
namespace {

// TensorFlow's mark, which its masters searched for anywhere in the text before they had payloads
// (recv_tensor/derived.h). Source: tensorflow/core/platform/status.cc of 2.0.
constexpr absl::string_view kMark = "[_Derived_]";

}  // namespace

bool IsDerived(const absl::Status& status) { return absl::StrContains(status.message(), kMark); }

absl::Status MakeDerived(const absl::Status& status) {
  if (status.ok() || IsDerived(status)) return status;
  return absl::Status(status.code(), absl::StrCat(kMark, status.message()));
}

absl::Status WithoutDerivedMark(const absl::Status& status) {
  if (!IsDerived(status)) return status;
  return absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{kMark, ""}}));
}

}  // namespace ferry
