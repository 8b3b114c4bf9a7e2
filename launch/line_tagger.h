// SPDX-License-Identifier: Apache-2.0
// LineTagger: cuts a stream of bytes into lines and puts a tag before each.
#ifndef FERRY_LAUNCH_LINE_TAGGER_H_
#define FERRY_LAUNCH_LINE_TAGGER_H_

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace ferry {

// For one output stream of one process. Append input as it is read; the sink receives whole lines:
//   LineTagger tagger("[3] ", 65536);
//   tagger.Append(bytes, [](absl::string_view line) { Write(line); });
//   tagger.Flush(...);  // at the end of the stream
// A carriage return ends a line too, so that a progress bar is shown while it moves. A line longer
// than the limit is emitted in pieces, each with the tag. Buffers at most one line. Not
// thread-safe.
class LineTagger final {
 public:
  // `line` includes the tag and a line feed.
  using Sink = absl::FunctionRef<void(absl::string_view line)>;

  //   max_line_bytes: at least 1; without tag and line feed.
  LineTagger(std::string tag, size_t max_line_bytes);

  void Append(absl::string_view bytes, Sink sink);

  // Emits the input after the last line feed, if any.
  void Flush(Sink sink);

  // Returns `line` without the tag and the line feed.
  absl::string_view Untagged(absl::string_view line) const;

 private:
  void Emit(Sink sink);

  const std::string tag_;
  const size_t max_line_bytes_;
  std::string line_;           // tag_ and the line's bytes so far
  bool after_return_ = false;  // the last byte was a carriage return that ended a line
};

}  // namespace ferry

#endif  // FERRY_LAUNCH_LINE_TAGGER_H_
