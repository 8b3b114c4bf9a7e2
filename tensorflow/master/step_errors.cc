// SPDX-License-Identifier: Apache-2.0
// Separates root errors from derived ones.
#include "tensorflow/master/step_errors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "rendezvous/value.h"

namespace ferry::master {
namespace {

// Truncation limit per error if a message combines several; a single one is not truncated.
constexpr size_t kMaxBytesOfEach = 8192;

absl::Status WithoutMark(const absl::Status& status) {
  const absl::StatusCode code =
      absl::IsUnavailable(status) ? absl::StatusCode::kAborted : status.code();
  return absl::Status(code, WithoutDerivedMark(status).message());
}

}  // namespace

void StepErrors::Add(absl::string_view worker, const absl::Status& error) {
  absl::Status named(error.code(), absl::StrCat("From ", worker, ":\n", error.message()));
  const bool is_derived = IsDerived(error) || absl::IsUnavailable(error) ||
                          ((has_root() || has_given_up_) && absl::IsCancelled(error));
  (is_derived ? derived_ : roots_).push_back(std::move(named));
}

void StepErrors::Cause(absl::Status cause) {
  if (!has_root() && !has_given_up_) roots_.push_back(std::move(cause));
}

void StepErrors::GiveUpOnCause() {
  if (!has_root() && !derived_.empty()) has_given_up_ = true;
}

absl::Status StepErrors::Summary() const {
  if (empty()) return absl::OkStatus();
  if (roots_.empty()) return WithoutMark(derived_.front());
  if (roots_.size() == 1) return roots_.front();
  std::string text = "\n=====================";
  for (const absl::Status& root : roots_) {
    const absl::Status cut(root.code(), root.message().substr(0, kMaxBytesOfEach));
    absl::StrAppend(&text, "\n", cut.ToString());
  }
  absl::StrAppend(&text, "\n=====================\n");
  return absl::Status(roots_.front().code(), text);
}

}  // namespace ferry::master
