// SPDX-License-Identifier: Apache-2.0
// LineTagger: one pass over the bytes.
#include "launch/line_tagger.h"

#include <algorithm>
#include <utility>

namespace ferry {

LineTagger::LineTagger(std::string tag, size_t max_line_bytes)
    : tag_(std::move(tag)), max_line_bytes_(max_line_bytes), line_(tag_) {}

void LineTagger::Emit(Sink sink) {
  line_ += '\n';
  sink(line_);
  line_.resize(tag_.size());
}

void LineTagger::Append(absl::string_view bytes, Sink sink) {
  while (!bytes.empty()) {
    const char first = bytes.front();
    if (first == '\n' || first == '\r') {
      const bool empty = line_.size() == tag_.size();
      // "\r\n" is a single line end, and the empty piece before a progress bar's return is not a
      // line.
      if (!(empty && (first == '\r' || after_return_))) Emit(sink);
      after_return_ = first == '\r';
      bytes.remove_prefix(1);
      continue;
    }
    after_return_ = false;
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    const size_t room = max_line_bytes_ - (line_.size() - tag_.size());
    const size_t taken = std::min(end, room);
    line_.append(bytes.data(), taken);
    bytes.remove_prefix(taken);
    // Broken only if more follows: a line of exactly the limit is whole.
    if (taken < end) Emit(sink);
  }
}

void LineTagger::Flush(Sink sink) {
  if (line_.size() > tag_.size()) Emit(sink);
}

absl::string_view LineTagger::Untagged(absl::string_view line) const {
  line.remove_prefix(tag_.size());
  line.remove_suffix(1);
  return line;
}

}  // namespace ferry
