// SPDX-License-Identifier: Apache-2.0
// ReplayReport: lines "RECORD:LINE FUNCTION: WHAT", then sums.
#include "benchmarks/gpu/calls/replay_report.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry::calls {
namespace {

constexpr int64_t kPrintedOfAKind = 5;

std::string Place(const CallRecord& record, const RecordedCall& call) {
  return absl::StrCat(record.name, ":", call.line, " ", call.description->symbol);
}

}  // namespace

void ReplayReport::Print(absl::string_view kind, std::string line) {
  if (++kinds_[std::string(kind)] > kPrintedOfAKind) return;
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

void ReplayReport::Difference(const CallRecord& record, const RecordedCall& call,
                              absl::string_view text) {
  ++differences_;
  const absl::string_view what = text.substr(0, text.find(": recorded"));
  Print(absl::StrCat("difference: ", call.description->symbol, ": ", what),
        absl::StrCat("difference: ", Place(record, call), ": ", text));
}

void ReplayReport::Skipped(const CallRecord& record, const RecordedCall& call,
                           absl::string_view why, bool is_error) {
  ++(is_error ? errors_ : skipped_);
  Print(absl::StrCat("not performed: ", call.description->symbol),
        absl::StrCat("not performed: ", Place(record, call), ": ", why));
}

void ReplayReport::Trouble(absl::string_view text) {
  ++differences_;
  std::fprintf(out_, "difference: %s\n", std::string(text).c_str());
}

int ReplayReport::Finish(size_t processes) {
  for (const auto& [kind, count] : kinds_) {
    if (count > kPrintedOfAKind) {
      std::fprintf(out_, "%s: %lld in all\n", kind.c_str(), static_cast<long long>(count));
    }
  }
  std::fprintf(
      out_,
      "cuda_replay: %lld calls of %zu processes performed; %lld differences; %lld calls not "
      "performed\n",
      static_cast<long long>(played_), processes, static_cast<long long>(differences_),
      static_cast<long long>(errors_ + skipped_));
  if (differences_ > 0) return 1;
  return errors_ + skipped_ > 0 ? 2 : 0;
}

}  // namespace ferry::calls
